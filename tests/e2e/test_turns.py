"""Runs with an environment through the command line: rollouts of several turns, updates, checkpoints, evaluation."""

import json

import pytest

from megatron_sspo.checkpoint.batches import read_batches
from tests.rollout import acting_models

pytestmark = pytest.mark.slow

_RECIPE = """
from dataclasses import replace
from pathlib import Path

from megatron_sspo.types import Sampling
from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Parallel, Prompts, Rollouts, Run

HERE = Path(__file__).parent
TASKS = Prompts(source=str(HERE / "tasks.jsonl"), max_tokens=16)


def recipe() -> Run:
    return Run(
        name="run",
        output=str(HERE),
        model=Model(path=str(HERE / "model"), dtype="float32"),
        prompts=TASKS,
        rollouts=Rollouts(
            prompts_per_update=3,
            group_size=6,
            sampling=Sampling(max_tokens=40),
            environment="codeact",
            environment_options={"max_turns": 4, "max_characters": 60},
        ),
        reward="codeact",
        num_updates=4,
        optimizer=Optimizer(lr=1e-2),
        tokens_per_microbatch=64,
        evaluation=Evaluation(sets={"tasks": HeldOut(prompts=TASKS)}),
        checkpoint_every=1,
        checkpoints_kept=4,
    )
"""


def rows(workshop, name):
    return [json.loads(line) for line in (workshop.folder / "run" / name).read_text().splitlines()]


def test_a_run_in_an_environment_and_what_it_leaves(workshop) -> None:
    acting_models.build(workshop.folder / "model")
    (workshop.folder / "acting.py").write_text(_RECIPE)
    tasks = [json.dumps({"question": f"w3{number}", "answer": "42"}) for number in range(6)]
    (workshop.folder / "tasks.jsonl").write_text("\n".join(tasks))
    recipe = str(workshop.folder / "acting.py")
    done = workshop.run("train", recipe, "--set", "num_updates=3")
    assert done.returncode == 0, done.stderr
    workshop.assert_nobody_left()

    found = rows(workshop, "metrics.jsonl")
    assert [row["update"] for row in found] == [1, 2, 3]
    assert all(row["response/turns_mean"] > 1 and row["response/observed_tokens_mean"] > 1 for row in found)
    assert all(row["response/tokens"] == pytest.approx(18 * row["response/tokens_mean"]) for row in found)
    assert all(row["engine/log_prob_difference_max"] < 1e-3 for row in found[::2]), "each cycle's first is on-policy"
    assert all(0 < row["environment/cells_per_episode"] < 4 for row in found[::2])
    assert any(row["environment/sessions_ended_early"] > 0 for row in found[::2])
    assert any(row["reward/answer"] > 0 for row in found)

    kept = read_batches(workshop.folder / "run" / "checkpoints" / "update-000003" / "batches.npz")
    batch = [rollout for groups in kept for group in groups for rollout in group.rollouts]
    assert batch, "no batch was left of the cycle"
    assert any(rollout.observed and "[user]" in rollout.transcript for rollout in batch)
    assert len(rows(workshop, "evaluation_responses.jsonl")) == 6

    changes = ("--set", "num_updates=6", "--set", "old_policy=rollout")  # from the next cycle on
    done = workshop.run("train", recipe, "--resume", str(workshop.folder / "run"), *changes)
    assert done.returncode == 0, done.stderr
    again = rows(workshop, "metrics.jsonl")
    assert [row["update"] for row in again] == [1, 2, 3, 4, 5, 6]
    assert again[3]["response/observed_tokens_mean"] > 1
    assert [row["engine/log_prob_difference_max"] == 0 for row in again] == [False] * 4 + [True] * 2
    assert again[4]["policy/kl_old"] > 0, "the engine's kernels differ from the trainer's"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rollouts.environment=codeac", "there is no environment named 'codeac': choose one of codeact"),
        ("rollouts.environment_options.max_turn=3", "the environment 'codeact' has no option max_turn"),
    ],
)
def test_what_is_wrong_with_an_environment_is_said_before_anything_starts(workshop, capsys, change, said) -> None:
    from megatron_sspo.__main__ import main

    acting_models.build(workshop.folder / "model")
    (workshop.folder / "acting.py").write_text(_RECIPE)
    (workshop.folder / "tasks.jsonl").write_text(json.dumps({"question": "w3", "answer": "42"}))
    assert main(["train", str(workshop.folder / "acting.py"), "--set", change]) == 2
    assert said in capsys.readouterr().err


def test_a_model_whose_chat_template_has_no_second_turn(workshop, capsys) -> None:
    from megatron_sspo.__main__ import main

    folder = acting_models.build(workshop.folder / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (workshop.folder / "acting.py").write_text(_RECIPE)
    assert main(["train", str(workshop.folder / "acting.py")]) == 2
    assert "does not show a response and the message after it" in capsys.readouterr().err
