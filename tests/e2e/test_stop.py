"""Runs that are asked to end early, and runs that are killed while they save."""

import shutil
import signal
import time

import pytest

from megatron_sspo.checkpoint.state import list_checkpoints
from megatron_sspo.processes import stop
from megatron_sspo.run_folder.metrics_files import EVALUATIONS, read
from tests.e2e.test_resume import assert_same

pytestmark = pytest.mark.slow


def wait_for(happened, process, seconds=240):
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_ends_a_run_after_an_update_with_a_checkpoint(whole_run, workshop) -> None:
    """The first of two processes to get the signal may be an update ahead of the other."""
    reference, layout = whole_run
    number = dict(zip(("recipe", "experts"), stop.SIGNALS, strict=True))[layout]
    recipe, run = f"{workshop.recipe}:{layout}", workshop.folder / "run"
    sets = ["--set", "checkpoint_every=0"]
    process = workshop.start("train", recipe, *sets)
    wait_for(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text(), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == stop.BY_SIGNAL, err
    assert f"because {number.name} came" in out and f"continue with --resume {run}" in out
    workshop.assert_nobody_left()
    assert len(list_checkpoints(run / "checkpoints")) == 1 and not (run / "model").exists()

    done = workshop.run("train", recipe, *sets, "--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert_same(run, reference.folder / "run")


def test_a_signal_ends_a_warm_start_and_what_would_follow_it(workshop) -> None:
    run = workshop.folder / "run"
    process = workshop.start("train", f"{workshop.recipe}:experts", "--set", "warm_start.updates=1000000")
    wait_for(lambda: (run / "log.txt").exists() and "into" in (run / "log.txt").read_text(), process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == stop.BY_SIGNAL, err
    assert "stopped after update 0 " in out and f"continue with --resume {run}" in out
    assert not list_checkpoints(run / "checkpoints") and not (run / EVALUATIONS).exists()
    workshop.assert_nobody_left()


def test_a_signal_after_a_warm_start_saves_it(whole_run, workshop) -> None:
    reference, layout = whole_run
    recipe, run = f"{workshop.recipe}:{layout}", workshop.folder / "run"
    process = workshop.start("train", recipe, "--set", "checkpoint_every=0")
    wait_for(lambda: (run / "log.txt").exists() and "warm start 3/3" in (run / "log.txt").read_text(), process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == stop.BY_SIGNAL, err
    assert "checkpoint of the warm start in" in out or "stopped after update 0 " not in out
    assert len(list_checkpoints(run / "checkpoints")) == 1

    done = workshop.run("train", recipe, "--set", "checkpoint_every=0", "--resume", str(run))
    assert done.returncode == 0 and "warm start 3/3" not in done.stdout, done.stderr
    assert_same(run, reference.folder / "run")


def test_a_run_that_is_asked_to_end_in_its_last_evaluation_has_saved_what_it_learned(workshop) -> None:
    recipe, run = f"{workshop.recipe}:stopped_in_the_end", workshop.folder / "run"
    stopped = workshop.run("train", recipe)
    assert stopped.returncode == stop.BY_FILE, stopped.stderr
    assert f"because {run / stop.FILE} was made" in stopped.stdout and not (run / stop.FILE).exists()
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["update-000002"]
    assert [row["update"] for row in read(run / EVALUATIONS)] == [0] and not (run / "model").exists()

    done = workshop.run("train", recipe, "--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert [row["update"] for row in read(run / EVALUATIONS)] == [0, 2] and (run / "model").exists()


def test_a_checkpoint_that_was_being_written_is_never_chosen(whole_run, workshop) -> None:
    """The writer process does not outlive the trainer either. One process waits for it, two train meanwhile."""
    reference, layout = whole_run
    in_background = layout == "experts"
    recipe, run = f"{workshop.recipe}:{layout}", workshop.folder / "run"
    sets = ["--set", f"checkpoint_in_background={str(in_background).lower()}"]
    half = lambda: any((run / "checkpoints").glob(".update-000003-*/trainer/*.distcp"))  # noqa: E731
    for _ in range(5):  # a fast machine may finish the checkpoint before the process is dead
        shutil.rmtree(run, ignore_errors=True)
        workshop.kill_when(half, "train", recipe, *sets)
        if left := [*(run / "checkpoints").glob(".update-000003-*")]:
            break
    assert left, "it was whole each time"
    done = workshop.run("train", recipe, *sets, "--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert "resumed after update 2" in done.stdout
    assert ("s of it in the background" in done.stdout) == in_background
    assert_same(run, reference.folder / "run")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"update-00000{n}" for n in (3, 4, 5, 6)]
