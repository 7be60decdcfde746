"""Servers answer an evaluation while the trainer goes on, and its numbers are those of a trainer that waits."""

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import PLUGINS, Workshop
from tests.e2e.test_resume import assert_same
from tests.rows import rows, sets

pytestmark = pytest.mark.slow

GREEDY, SAMPLED, ROLLOUTS = 1, 2, 4  # numbers of responses to a prompt
# one evaluation and one checkpoint within a cycle
CHANGES = ("warm_start=None", "evaluation.every=3", "checkpoint_every=3")


def train(made: Workshop, name: str, engine: str, *arguments: str) -> Path:
    """Returns the run's folder."""
    served = {"events": str(made.folder / f"{name}.events"), "release_memory": name == "in_turns"}
    options = {"odd": "{}", "served": json.dumps(served)}[engine]
    changes = (*CHANGES, f"name={name}", f"rollouts.engine={PLUGINS}:{engine}", f"rollouts.options={options}")
    done = made.run("train", made.recipe, *sets(*changes), *arguments)
    assert done.returncode == 0, done.stderr
    return made.folder / name


def test_the_trainer_goes_on_and_the_numbers_are_the_same(workshop) -> None:
    waiting, ahead = (train(workshop, engine, engine) for engine in ("odd", "served"))
    assert_same(ahead, waiting)
    assert [row["update"] for row in rows(ahead / "evaluations.jsonl")] == [0, 3, 6]
    assert "evaluation of update 3  short: " in (ahead / "log.txt").read_text()

    events = (workshop.folder / "served.events").read_text().splitlines()
    asked = [f"begin {size}" for size in (GREEDY, SAMPLED)] * 2
    answered = [f"wait {size}" for size in (GREEDY, SAMPLED)] * 2
    rollouts = [f"begin {ROLLOUTS}", f"wait {ROLLOUTS}"]
    assert events == [
        *("load 0", *asked, *rollouts, *answered),  # after updates 1 and 2
        *("load 2", *rollouts),
        *("load 3", *asked, *answered),  # after update 4
        *("load 4", *rollouts),
        *("load 6", *asked, *answered),
    ]

    assert_same(train(workshop, "in_turns", "served"), waiting)

    # as after a kill between the checkpoint, which is saved while servers answer, and the end of the evaluation
    shutil.rmtree(ahead / "checkpoints" / "update-000006")
    first = rows(ahead / "evaluations.jsonl")[0]
    (ahead / "evaluations.jsonl").write_text(f"{json.dumps(first)}\n")
    shutil.rmtree(ahead / "model")
    (workshop.folder / "served.events").unlink()
    assert_same(train(workshop, "served", "served", "--resume", str(ahead)), waiting)
    events = (workshop.folder / "served.events").read_text().splitlines()
    assert events[:9] == ["load 3", *asked, *answered]
