"""Sweeps of real runs: a sweep that is killed gets the same table as one that was never killed."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import _make

pytestmark = pytest.mark.slow

SHORT = (
    *("--set", "num_updates=2"),
    *("--set", "evaluation.sets=short", "--set", "evaluation.every=1", "--set", "evaluation.samples=0"),
    *("--set", "warm_start.updates=1"),
)
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
    done = made.run("train", made.recipe, *SHORT, "--set", "num_updates=1", "--set", "optimizer.lr=0")
    assert done.returncode == 0, done.stderr
    return made


def test_runs_that_start_from_a_warm_started_folder_need_no_warm_start(warm) -> None:
    """The runs have a KL penalty to their first weights, which is an error for a run with its own warm start."""
    folder, start = warm.folder / "sweep", ("--start-from", str(warm.folder / "run"))
    command = ("sweep", warm.recipe, *SHORT, "--set", "penalties.kl_coef=1000", f"--output={folder}")
    refused = warm.run(*command, "--vary", "optimizer.lr=[0, 1e-3]")
    assert refused.returncode == 2 and "warm-start in a run of its own" in refused.stderr
    done = warm.run(*command, "--vary", "optimizer.lr=[0, 1e-3]", *start)
    assert done.returncode == 0, done.stdout + done.stderr
    for run in runs(folder):
        config = json.loads((run / "config.json").read_text())
        assert config["warm_start"] is None and config["model"]["init"] == "pretrained"
        assert config["model"]["path"] == str(warm.folder / "run" / "model")
        rows = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
        before = json.loads((warm.folder / "run" / "evaluations.jsonl").read_text().splitlines()[-1])
        assert {key: value for key, value in rows[0].items() if key != "update"} == {
            key: value for key, value in before.items() if key != "update"
        }
    losses = {
        run.name: [json.loads(line)["policy/loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in runs(folder)
    }
    # if the weights do not change, the divergence from the reference is 0, and so is a thousand times as much
    assert max(map(abs, losses["optimizer.lr=0,seed=0"])) < 1e-4
    assert abs(losses["optimizer.lr=1e-3,seed=0"][-1]) > 1e-3


def test_what_cannot_be_started_from_is_one_sentence(warm) -> None:
    unfinished = warm.folder / "unfinished"
    (unfinished / "checkpoints").mkdir(parents=True)
    for folder, message in (
        (unfinished, "is a run that has no model yet: finish it with --resume"),
        (warm.folder / "nowhere", "has no config.json: name a finished run, or a Hugging Face folder"),
    ):
        done = warm.run("sweep", warm.recipe, "--start-from", str(folder))
        assert done.returncode == 2 and message in done.stderr, done.stderr


def test_a_second_driver_is_refused_and_the_first_leaves_at_sigterm(warm) -> None:
    """The exit code is 85, and the same command then continues the sweep."""
    folder = warm.folder / "asked"
    command = ("sweep", warm.recipe, *SHORT, "--set", "num_updates=40", f"--output={folder}")
    process = warm.start(*command)
    deadline = time.monotonic() + 240
    while not any(map(has_row, runs(folder))):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    second = warm.run(*command)
    assert second.returncode == 2 and f"{folder} is in use by a sweep, process {process.pid} on" in second.stderr
    assert second.stderr.rstrip().endswith("or choose another folder with --output")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 85, out + err
    assert "SIGTERM came, and the runs have stopped: the same command continues them" in out
    reached = len((folder / "seed=0" / "metrics.jsonl").read_text().splitlines())
    assert 0 < reached < 40 and list((folder / "seed=0" / "checkpoints").glob(f"update-{reached:06d}"))
    other = warm.run(*command, "--set", "optimizer.lr=5e-4")
    assert (
        other.returncode == 2 and "optimizer.lr was 0.001, and is 0.0005 here: choose another --output" in other.stderr
    )
