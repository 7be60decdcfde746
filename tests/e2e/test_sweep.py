"""Sweeps of real runs: a sweep that is killed gets the same table as one that was never killed."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import _make
from tests.rows import rows, sets

pytestmark = pytest.mark.slow

EVALUATION = ("evaluation.sets=short", "evaluation.every=1", "evaluation.samples=0")
SHORT = sets("num_updates=2", *EVALUATION, "warm_start.updates=1")
VARY = ("--vary", "objective={ours: sspo(), gspo: gspo()}", "--vary", "updates_per_sync=[1, 2]")


def sweep(workshop, folder: Path, *, seeds: int) -> tuple[str, ...]:
    return ("sweep", workshop.recipe, *SHORT, *VARY, f"--seeds={seeds}", "--at-once=2", f"--output={folder}")


def tables(workshop, folder: Path) -> list[str]:
    """Returns the sweep's tables, also for a number that differs between runs from the first update on."""
    found = []
    for measure in ("reward", "reward/mean"):
        done = workshop.run("table", str(folder), "--measure", measure)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    return found


def runs(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob("*/config.json")]


def trainers(folder: Path) -> dict[int, str]:
    """Returns the processes that train a run of the sweep, with the names of their runs."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().split("\0")
        except OSError:
            continue
        name = next((word.removeprefix("name=") for word in words if word.startswith("name=")), "")
        if "train" in words and f"output={folder}" in words and name:
            found[int(path.parent.name)] = name
    return found


def has_row(run: Path) -> bool:
    return (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0


@pytest.mark.timeout(1200)
@pytest.mark.long
def test_a_sweep_that_is_killed_comes_to_the_same_table(workshop) -> None:
    """The driver and runs get SIGKILL, and seeds are added later."""
    whole, killed = workshop.folder / "whole", workshop.folder / "killed"
    done = workshop.run(*sweep(workshop, whole, seeds=2), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(runs(whole)) == 8 and "8 of 8 runs finished; update 16 of 16" in done.stdout

    first = sweep(workshop, killed, seeds=1)
    workshop.kill_when(lambda: any(map(has_row, runs(killed))), *first)
    begun = {run.name for run in runs(killed)}
    assert begun and not all((run / "model").exists() for run in runs(killed))

    process = workshop.start(*sweep(workshop, killed, seeds=2))
    deadline, victims = time.monotonic() + 600, set()
    while process.poll() is None and len(victims) < 2:  # two runs, each in the middle
        assert time.monotonic() < deadline
        for pid, name in trainers(killed).items():
            run = killed / name
            if name not in victims and has_row(run) and not (run / "model").exists() and len(victims) < 2:
                os.kill(pid, signal.SIGKILL)
                victims.add(name)
        time.sleep(0.05)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert len(victims) == 2
    for name in victims:
        assert f"{name}: was killed by SIGKILL" in out and f"{name}: resumes" in out
    for name in begun - victims:
        assert f"{name}: starts" not in out  # it is resumed, or was finished already
    assert len(runs(killed)) == 8
    assert tables(workshop, killed) == tables(workshop, whole)
    once_more = workshop.run(*sweep(workshop, killed, seeds=2))
    assert once_more.returncode == 0 and ": starts" not in once_more.stdout and ": resumes" not in once_more.stdout
    picture = workshop.run("plot", str(killed))
    assert picture.returncode == 0 and (killed / "curves.png").stat().st_size > 10_000


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A run with one update that changes nothing, so that its model is that of the warm start."""
    made = _make(tmp_path_factory.mktemp("warm"))
    done = made.run("train", made.recipe, *SHORT, *sets("num_updates=1", "optimizer.lr=0"))
    assert done.returncode == 0, done.stderr
    return made


def test_runs_that_start_from_a_warm_started_folder_need_no_warm_start(warm) -> None:
    """The run has a KL penalty to its first weights, which is an error for a run with its own warm start."""
    folder, start = warm.folder / "sweep", ("--start-from", str(warm.folder / "run"))
    command = ("sweep", warm.recipe, *SHORT, *sets("penalties.kl_coef=1000"), f"--output={folder}")
    refused = warm.run(*command)
    assert refused.returncode == 2 and "warm-start in a run of its own" in refused.stderr
    done = warm.run(*command, *start)
    assert done.returncode == 0, done.stdout + done.stderr
    (*_, before), (run,) = rows(warm.folder / "run" / "evaluations.jsonl"), runs(folder)
    config = json.loads((run / "config.json").read_text())
    assert config["warm_start"] is None and config["model"]["init"] == "pretrained"
    assert config["model"]["path"] == str(warm.folder / "run" / "model")
    assert rows(run / "evaluations.jsonl")[0] == {**before, "update": 0}
    first, last = (row["policy/loss"] for row in rows(run / "metrics.jsonl"))
    # as long as weights have not changed, the divergence from the reference is 0, and so is a thousand times as much
    assert abs(first) < 1e-4 and abs(last) > 1e-3
