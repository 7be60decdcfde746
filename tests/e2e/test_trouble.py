"""Engines and rewards with errors."""

import json
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PLUGINS = Path(__file__).with_name("plugins.py")


def test_empty_responses_are_counted_and_a_loss_of_nan_ends_the_run_before_a_step_is_taken(workshop) -> None:
    """The engine returns NaN log-probs in its third cycle, and the correction keeps them; checkpoints stay valid."""
    run, recipe = workshop.folder / "run", f"{workshop.recipe}:bare"
    engine = ["--set", f"rollouts.engine={PLUGINS}:odd"]
    nan = ["--set", "rollouts.options.nan_from=4", "--set", "correction.mode=truncated"]
    done = workshop.run("train", recipe, *engine, *nan, "--set", "checkpoint_every=1")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("megatron-sspo: the loss is nan"), done.stderr
    assert done.stderr.count("\n") == 1
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert all(row["response/empty"] == 0.25 for row in rows)
    assert all(value == value for row in rows for value in row.values())
    assert not (run / "model").exists()
    assert done.stdout.count("10 rows are fine") == 1, "the remarks of the reward"

    mended = workshop.run("train", recipe, *engine, "--resume", str(run))
    assert mended.returncode == 0, mended.stderr
    assert "resumed after update 4" in mended.stdout and "rows are fine" not in mended.stdout
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_reward_of_nan_on_one_of_two_processes_stops_both_with_one_line(workshop) -> None:
    layout = ["--set", "parallel.data=2", "--set", "parallel.expert=2"]
    done = workshop.run("train", f"{workshop.recipe}:bare", *layout, "--set", "reward_options.spoilt_prompt=:3")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "{'answer': nan} for a response to prompt 'arithmetic/train/0:3': it must give" in done.stderr
    workshop.assert_nobody_left()
    left = {path.name for path in (workshop.folder / "run").iterdir()}
    assert left <= {".run.lock", "config.json", "initial_model", "log.txt", "metrics.jsonl"}


def test_an_engine_that_falls_over_ends_the_run_and_the_rewards_processes(workshop) -> None:
    """The math reward holds threads and processes, which must not keep the run from ending."""
    layout = ["--set", "parallel.data=2", "--set", "parallel.expert=2"]
    engine = ["--set", f"rollouts.engine={PLUGINS}:odd", "--set", "rollouts.options.fail_on_rank=1"]
    started = time.monotonic()
    done = workshop.run("train", f"{workshop.recipe}:bare", *layout, *engine, "--set", "reward=math", timeout=120)
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: the engine fell over" in done.stderr
    workshop.assert_nobody_left()
    assert time.monotonic() - started < 120
