"""A whole run on the command line with generation ahead of training: two trainer processes, a real server."""

import json

from safetensors.torch import load_file

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
    for key in ("sync/seconds", "sync/gigabytes", "rollout/seconds_idle", "seconds/rollout"):
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


def test_a_run_sends_its_adapters_alone(workshop):  # noqa: F811
    values = {"engine": "sglang", "options.lora": "adapter", "options.pause": "abort", "options.verify_every": 1}
    given = {f"rollouts.{name}": value for name, value in values.items()} | {"lora.rank": 4, "optimizer.lr": 0.03}
    done = workshop.run("train", f"{workshop.recipe}:experts", *settings(given), timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(workshop, "metrics.jsonl")
    assert [row["update"] for row in found] == [1, 2, 3, 4, 5, 6], "every update once"
    assert all(row["engine/log_prob_difference_max"] < 1e-4 for row in found)
    factors = load_file(workshop.folder / "run" / "adapter" / "adapter_model.safetensors")
    assert all(factor.abs().max() > 0.01 for factor in factors.values()), "B, which begins at 0, has learned"
    sent = [row["sync/gigabytes"] for row in found[::2]]
    assert sent[0] > 3 * sent[1] == 3 * sent[2], "the base is sent once"
