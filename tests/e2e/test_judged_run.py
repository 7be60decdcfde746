"""A run and its evaluations by several rewards, one of which asks a judge."""

import json

import pytest

from tests.e2e.conftest import PLUGINS
from tests.reward.stub_judge import judge
from tests.rows import rows, sets

pytestmark = pytest.mark.slow


def test_a_run_is_rewarded_by_a_judge_and_a_function(workshop) -> None:
    with judge(lambda response, before: f"SCORE: {len(response) % 10}" if len(response) % 7 else "Good!") as server:
        options = {"url": server.url, "model": "m", "rubric": "r", "retries": 0}
        rewards = {
            "own": {"reward": f"{PLUGINS}:vowels"},
            "critic": {"reward": "judge", "options": options, "weight": 2},
        }
        changes = ["reward=weighted", f"reward_options={json.dumps(rewards)}", "num_updates=2", "warm_start=null"]
        done = workshop.run("train", workshop.recipe, *sets(*changes))
        assert done.returncode == 0, done.stdout + done.stderr
        found = rows(workshop.folder / "run" / "metrics.jsonl")
        assert any(row.get("reward/critic/failed", 0) > 0 for row in found)
        assert all(
            row["reward/critic/judge"] > 0 and "reward/answer" in row and "reward/own/length" in row for row in found
        )
        evaluated = rows(workshop.folder / "run" / "evaluations.jsonl")
        assert all(row["sums/critic/judge"] > 0 and "sums/pass@1" in row for row in evaluated)
        # 2 updates of 3 · 4 responses, and 2 evaluations of 16 · (1 + 2)
        assert sum(server.asked.values()) == 2 * 12 + 2 * 48
