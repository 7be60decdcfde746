"""A whole run on the command line with generation ahead of training: two trainer processes, a real server."""

import json

from tests.e2e.conftest import workshop  # noqa: F401  (a fixture)

AHEAD = {
    "rollouts.engine": "sglang",
    "rollouts.options.verify_every": 1,
    "rollouts.max_staleness": 2,
    "rollouts.refills": 1,
    "rollouts.oversampling": 1.5,
    "rollouts.overlong_buffer": 4,
}


def settings(values):
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


def rows(workshop, name):  # noqa: F811
    return [json.loads(line) for line in (workshop.folder / "run" / name).read_text().splitlines()]


def check(workshop):  # noqa: F811
    found = rows(workshop, "metrics.jsonl")
    assert [row["update"] for row in found] == [1, 2, 3, 4, 5, 6], "every update once"
    # a cycle has two updates: at the second one, the rollouts are one update older than at the first
    assert all(row["rollout/staleness_max"] <= 2 + (row["update"] - 1) % 2 for row in found)
    assert max(row["rollout/staleness_max"] for row in found) >= 2, "generation did not run ahead"
    assert all(row["engine/log_prob_difference_max"] < 5 for row in found)
    first_of_cycle = found[::2]
    for key in ("sync/seconds", "sync/gigabytes", "rollout/seconds_idle", "rollout/groups_begun", "seconds/rollout"):
        assert all(key in row for row in first_of_cycle), key
    assert (workshop.folder / "run" / "model" / "config.json").exists()


def test_a_killed_run_resumes_and_leaves_no_server(workshop):  # noqa: F811
    command = ("train", f"{workshop.recipe}:experts", *settings(AHEAD))
    checkpoint = workshop.folder / "run" / "checkpoints" / "update-000003"
    workshop.kill_when(checkpoint.exists, *command)  # also checks that no process is left after 10 seconds
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["cycles"]["begun"], "nothing was under way, so that this shows nothing"
    done = workshop.run(*command, "--resume", str(workshop.folder / "run"), timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 rollout servers are ready after" in done.stdout
    check(workshop)
    assert len(rows(workshop, "evaluations.jsonl")) == 4
