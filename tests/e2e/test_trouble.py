"""Engines and rewards with errors, and rewards that teach nothing."""

import time

import pytest

from tests.e2e.conftest import PLUGINS
from tests.rows import rows, sets

pytestmark = pytest.mark.slow
TWO = sets("parallel.data=2", "parallel.expert=2")


def test_empty_responses_are_counted_and_a_loss_of_nan_ends_the_run_before_a_step_is_taken(workshop) -> None:
    """The engine returns NaN log-probs in its third cycle, and the correction keeps them; checkpoints stay valid."""
    run, recipe = workshop.folder / "run", f"{workshop.recipe}:bare"
    engine = sets(f"rollouts.engine={PLUGINS}:odd")
    nan = sets("rollouts.options.nan_from=4", "correction.mode=truncated", "checkpoint_every=1")
    done = workshop.run("train", recipe, *engine, *nan)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("megatron-sspo: the loss is nan"), done.stderr
    assert done.stderr.count("\n") == 1
    found = rows(run / "metrics.jsonl")
    assert [row["update"] for row in found] == [1, 2, 3, 4]
    assert all(row["response/empty"] == 0.25 for row in found)
    assert all(value == value for row in found for value in row.values())
    assert not (run / "model").exists()
    assert done.stdout.count("10 rows are fine") == 1, "the remarks of the reward"

    mended = workshop.run("train", recipe, *engine, "--resume", str(run))
    assert mended.returncode == 0, mended.stderr
    assert "resumed after update 4" in mended.stdout and "rows are fine" not in mended.stdout
    assert len(rows(run / "metrics.jsonl")) == 6


def test_a_reward_of_nan_on_one_of_two_processes_stops_both_with_one_line(workshop) -> None:
    done = workshop.run("train", f"{workshop.recipe}:bare", *TWO, *sets("reward_options.spoilt_prompt=:3"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "{'answer': nan} for a response to prompt 'arithmetic/train/0:3': it must give" in done.stderr
    workshop.assert_nobody_left()
    left = {path.name for path in (workshop.folder / "run").iterdir()}
    assert left <= {".run.lock", "config.json", "initial_model", "log.txt", "metrics.jsonl"}


def test_an_engine_that_falls_over_ends_the_run_and_the_rewards_processes(workshop) -> None:
    """The math reward holds threads and processes, which must not keep the run from ending."""
    engine = sets(f"rollouts.engine={PLUGINS}:odd", "rollouts.options.fail_on_rank=1", "reward=math")
    started = time.monotonic()
    done = workshop.run("train", f"{workshop.recipe}:bare", *TWO, *engine, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: the engine fell over" in done.stderr
    workshop.assert_nobody_left()
    assert time.monotonic() - started < 120


def test_a_run_that_learns_nothing_says_why(workshop) -> None:
    """The run says it once, with a response as the model wrote it."""
    done = workshop.run("train", f"{workshop.recipe}:bare", *sets(f"reward={PLUGINS}:constant", "num_updates=6"))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "so nothing is learned" in line]
    assert "the reward 0.5: the reward does not tell them apart" in line and "as the model wrote it" in line, line
    assert "update 4 " in done.stdout.partition(line)[2], "before the end of the second cycle is shown"
