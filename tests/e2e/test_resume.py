"""A killed and resumed run ends with the same numbers, to the bit, as an uninterrupted one."""

import json
import shutil
from pathlib import Path

import pytest

from megatron_sspo.checkpoint.state import read_checkpoint
from megatron_sspo.processes.ports import free_port
from tests.rows import rows as parsed
from tests.rows import sets

pytestmark = pytest.mark.slow


def rows(path: Path) -> list[str]:
    """Returns the rows as text without durations; equal text means equal bits."""
    return [json.dumps({k: v for k, v in row.items() if not k.startswith("seconds/")}) for row in parsed(path)]


def assert_same(run: Path, reference: Path) -> None:
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert rows(run / name) == rows(reference / name), name
    assert (run / "model" / "model.safetensors").read_bytes() == (reference / "model/model.safetensors").read_bytes()
    for name in ("evaluation_responses.jsonl", "rollouts.jsonl"):
        assert (run / name).read_text() == (reference / name).read_text(), name


def test_the_reference_learns_from_something(whole_run) -> None:
    """The comparison would prove nothing if all numbers were zero."""
    made, _ = whole_run
    assert "nothing is learned" not in (made.folder / "run" / "log.txt").read_text()
    metrics = parsed(made.folder / "run" / "metrics.jsonl")
    assert [row["update"] for row in metrics] == [1, 2, 3, 4, 5, 6]
    assert all(row["policy/grad_norm"] > 0 for row in metrics)
    assert [row["rollout/staleness"] for row in metrics] == [0, 1, 0, 1, 0, 1]
    assert all(row["policy/kl_old"] > 0 for row in metrics if row["rollout/staleness"])
    assert [row["update"] for row in parsed(made.folder / "run" / "evaluations.jsonl")] == [0, 2, 4, 6]


def test_killed_and_resumed(whole_run, workshop) -> None:
    reference, layout = whole_run
    recipe, run = f"{workshop.recipe}:{layout}", workshop.folder / "run"
    # one of the two layouts is killed with its optimizer on the host, and resumed with half of it there, or nothing
    on_host = {"experts": sets("optimizer.offload=1")}.get(layout, ())
    workshop.kill_when((run / "checkpoints" / "update-000003").exists, "train", recipe, *on_host)

    again = workshop.run("train", recipe)
    assert again.returncode == 2
    assert "already contains a run" in again.stderr

    for update, name in ((3, "within a cycle"), (2, "between two cycles"), (0, "after the warm start")):
        if layout == "experts" and update == 2:
            continue  # start-up takes most of the time, and one process is enough
        copy = workshop.folder / name
        shutil.copytree(run, copy)
        for newer in range(update + 1, 7):
            shutil.rmtree(copy / "checkpoints" / f"update-{newer:06d}", ignore_errors=True)
        if update == 0:
            (copy / "evaluations.jsonl").unlink()  # as of a run that was killed in the evaluation after it
        share = sets("optimizer.offload=0.5") if on_host and update else ()
        done = workshop.run("train", recipe, *share, "--resume", str(copy))
        assert done.returncode == 0, done.stderr
        assert f"resumed after update {update}" in done.stdout and "warm start 3/3" not in done.stdout
        assert "state dict" not in done.stdout + done.stderr  # Megatron's warning of ranks that save different keys
        assert_same(copy, reference.folder / "run")
        assert read_checkpoint(copy / "checkpoints" / "update-000006")[0].is_warm_started


def test_killed_before_the_first_checkpoint(whole_run, workshop) -> None:
    reference, layout = whole_run
    if layout != "recipe":
        pytest.skip("start-up takes most of the time, and one process shows it")
    run = workshop.folder / "run"
    workshop.kill_when((run / ".run.lock").exists, "train", workshop.recipe)
    workshop.kill_when((run / "config.json").exists, "train", workshop.recipe)
    assert not list((run / "checkpoints").glob("update-*"))
    done = workshop.run("train", workshop.recipe, "--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert_same(run, reference.folder / "run")


def test_a_run_that_begins_anew_says_so(trained, workshop) -> None:
    run = Path(shutil.copytree(trained.folder / "run", workshop.folder / "run"))
    for name in ("model", "checkpoints"):
        shutil.rmtree(run / name)
    done = workshop.run("train", f"{trained.recipe}:bare", *sets("num_updates=2"), "--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert "no checkpoint: begins anew, 2 rows of metrics are dropped" in (run / "log.txt").read_text()
    assert rows(run / "metrics.jsonl") == rows(trained.folder / "run" / "metrics.jsonl")


def test_continues_on_another_number_of_processes(whole_run, workshop) -> None:
    """One process trained; two continue within a cycle, as after a requeue with another number of nodes."""
    reference, layout = whole_run
    if layout != "recipe":
        pytest.skip("start-up takes most of the time, and one direction shows it")
    run = Path(shutil.copytree(reference.folder / "run", workshop.folder / "run"))
    for newer in (4, 5, 6):
        shutil.rmtree(run / "checkpoints" / f"update-{newer:06d}")
    arguments = ("train", f"{workshop.recipe}:by_size", "--resume", str(run))
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [workshop.start(*arguments, **variables, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)]
    (out, err), _ = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], err
    assert "2 processes" in out and "resumed after update 3" in out
    assert "the layout is data 2, expert 2, and was one process" in " ".join(out.split())
    found, expected = (list(map(json.loads, rows(one / "metrics.jsonl"))) for one in (run, reference.folder / "run"))
    assert [row["update"] for row in found] == [1, 2, 3, 4, 5, 6]
    assert found[:3] == expected[:3]
    assert expected[3]["rollout/staleness"] == 1  # the batch of update 4 is in the checkpoint
    for name in ("reward/mean", "policy/loss", "policy/grad_norm", "policy/learning_rate"):
        assert found[3][name] == pytest.approx(expected[3][name], rel=1e-4, abs=1e-6), name


def test_a_penalty_that_begins_within_a_cycle(workshop) -> None:
    """The batches of that cycle have no log-probs of the reference policy yet."""
    recipe, run = f"{workshop.recipe}:bare", workshop.folder / "run"
    assert workshop.run("train", recipe, *sets("num_updates=1")).returncode == 0
    done = workshop.run("train", recipe, *sets("num_updates=2", "penalties.kl_coef=0.5"), "--resume", str(run))
    assert done.returncode == 0, done.stderr


def test_a_reference_that_moves(workshop) -> None:
    """A cycle begins with the reference of its own weights, and a resumed run has the reference of the one before."""
    recipe, run = f"{workshop.recipe}:bare", workshop.folder / "run"
    options = sets("checkpoint_every=1", "checkpoints_kept=9", "penalties.kl_coef=0.1", "kl_in_reward=0.01")
    assert workshop.run("train", recipe, *options, *sets("reference_every=2")).returncode == 0
    found = parsed(run / "metrics.jsonl")
    assert [row["policy/kl_reference"] < 1e-10 for row in found] == [True, False] * 3
    assert [row["reward/kl"] == 0 for row in found] == [True] * 6  # π_old is π_ref at the start of each cycle
    shutil.rmtree(run)
    assert workshop.run("train", recipe, *options, *sets("reference_every=3")).returncode == 0
    assert [row["reward/kl"] == 0 for row in parsed(run / "metrics.jsonl")] == [True] * 2 + [False] * 4
    resumed = workshop.folder / "resumed"
    shutil.copytree(run, resumed)
    for newer in (5, 6):
        shutil.rmtree(resumed / "checkpoints" / f"update-{newer:06d}")
    done = workshop.run("train", recipe, *options, *sets("reference_every=3"), "--resume", str(resumed))
    assert done.returncode == 0, done.stderr
    assert rows(resumed / "metrics.jsonl") == rows(run / "metrics.jsonl")
    done = workshop.run("train", recipe, *options, *sets("num_updates=8"), "--resume", str(run))
    assert done.returncode == 2 and "reference_every is 0, and was 3 in the checkpoint" in " ".join(done.stderr.split())
