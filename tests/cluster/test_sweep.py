"""Sweeps as a job array and as experiments of NeMo-Run; after a kill, the table equals a local sweep's."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import end_jobs
from tests.cluster.slurm import CLUSTER, ROOT, Job, call, processes

NEMO_RUN_PYTHON = Path(os.environ.get("NEMO_RUN_PYTHON", Path(sys.prefix).parent / ".venv-nemo-run" / "bin" / "python"))
ALL = (
    *("--set", "parallel.data=1", "--set", "parallel.expert=1", "--set", "checkpoint_every=1"),
    *("--set", "num_updates=4", "--vary", "objective={ours: sspo(), gspo: gspo()}"),
)
SBATCH = "--nodes=1 --gpus-per-node=2 --time=30"


def megatron_sspo(workplace, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "SLURM_CONF": str(CLUSTER / "etc" / "slurm.conf"),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "PYTHON": sys.executable,
        "RANKS_PER_NODE": "1",
        "OMP_NUM_THREADS": "1",
        "NEMO_RUN_PYTHON": str(NEMO_RUN_PYTHON),
        "NEMORUN_HOME": f"{workplace.folder}/nemo",
        **variables,
    }
    command = [sys.executable, "-m", "megatron_sspo", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)


def sweep(workplace, name: str, *words: str) -> tuple[str, ...]:
    return ("sweep", f"{workplace.recipe}:embedded", *ALL, *words, f"--output={workplace.folder / name}")


def tables(workplace, name: str) -> list[str]:
    found = [
        megatron_sspo(workplace, "table", str(workplace.folder / name), "--measure", measure)
        for measure in ("additions/reward", "reward/mean")
    ]
    assert [done.returncode for done in found] == [0, 0], found
    assert "left out" not in found[0].stdout
    return [done.stdout for done in found]


@pytest.fixture
def submit(workplace):
    """A function submit(arguments of the sweep) that returns the array's number; its jobs are ended afterwards."""

    def run(*words: str, name: str = "sweep") -> str:
        options = ("--on", "slurm", f"--sbatch={SBATCH}")
        done = megatron_sspo(workplace, *sweep(workplace, name, *words, *options))
        assert done.returncode == 0, done.stdout + done.stderr
        number = done.stdout.split("Submitted batch job ")[1].split()[0]
        workplace.jobs.append(Job(number, workplace.folder))
        return number

    yield run
    for job in workplace.jobs:
        call("scancel", job.id)


def elements(array: str) -> dict[int, str]:
    """Returns the state of each element of an array, including waiting ones."""
    lines = call("squeue", "--noheader", "--array", "--states=all", f"--jobs={array}", "--format=%K %T").splitlines()
    return {int(number): state for number, state in map(str.split, lines)}


def wait_for(happened, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def await_end(array: str) -> dict[int, str]:
    """Waits until no element waits or runs; a requeued element waits for some seconds."""
    wait_for(lambda: set(elements(array).values()) <= {"COMPLETED", "FAILED", "CANCELLED"}, 900)
    return elements(array)


def log(folder: Path, element: str) -> str:
    return next((folder / "logs").glob(f"*-{element}.out")).read_text()


@pytest.mark.long
def test_an_array_is_killed_warned_and_gone_on_with_and_has_the_table_of_a_sweep_here(workplace, submit) -> None:
    """Twelve runs, four at a time. The last one to start has the array's own number, but is requeued alone."""
    grid = ("--vary", "updates_per_sync=[1, 2]", "--seeds=3", "--at-once=4")
    folder = workplace.folder / "sweep"
    workplace.hold.touch()
    array = submit(*grid)
    runs = json.loads((folder / "sweep.json").read_text())["runs"]
    assert len(runs) == 12
    wait_for((workplace.folder / "held").exists)
    assert list(elements(array).values()).count("PENDING") == 8
    again = megatron_sspo(workplace, *sweep(workplace, "sweep", *grid, "--on", "slurm", f"--sbatch={SBATCH}"))
    assert again.returncode == 0 and "12 runs are already in Slurm's queue" in again.stdout, again.stderr
    wait_for(lambda: (folder / runs[0] / "config.json").exists())
    node = Job(f"{array}_0", folder).shown("NodeList")
    os.kill(
        next(pid for pid, line in processes(node).items() if " train " in line and "bash" not in line), signal.SIGKILL
    )
    wait_for(lambda: elements(array)[0] == "FAILED")
    workplace.hold.unlink()

    held, rows, last = workplace.folder / "held", folder / runs[11] / "metrics.jsonl", f"{array}_11"
    wait_for(lambda: rows.exists() and rows.stat().st_size > 0)  # the run has something to save
    held.unlink()
    workplace.hold.touch()
    assert Job(last, folder).shown("JobId") == array
    wait_for(held.exists)
    call("scancel", "--batch", "--signal=USR1", last)
    wait_for(lambda: "the trainer finishes its update" in log(folder, last))
    workplace.hold.unlink()
    states = await_end(array)
    assert states == {0: "FAILED", **dict.fromkeys(range(1, 12), "COMPLETED")}, log(folder, last)
    assert "the time limit is near: requeued, to resume from the checkpoint" in log(folder, last)
    restarts = [int(Job(f"{array}_{number}", folder).shown("Restarts")) for number in range(12)]
    assert restarts == [0] * 11 + [1]

    second = submit(*grid)
    assert await_end(second) == {0: "COMPLETED"}
    here = megatron_sspo(workplace, *sweep(workplace, "here", *grid))
    assert here.returncode == 0, here.stdout + here.stderr
    assert tables(workplace, "sweep") == tables(workplace, "here")
    end_jobs(workplace)


@pytest.mark.timeout(1200)
@pytest.mark.long
def test_each_run_is_an_experiment_of_nemo_run(workplace) -> None:
    """Added seeds are run alone."""
    options = ("--on", "nemo-run", f"--sbatch={SBATCH}", "--at-once=3")
    first = megatron_sspo(workplace, *sweep(workplace, "sweep", *options, "--seeds=1"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2 of 2 runs finished" in first.stdout
    second = megatron_sspo(workplace, *sweep(workplace, "sweep", *options, "--seeds=3"))
    assert second.returncode == 0, second.stdout + second.stderr
    assert "6 of 6 runs finished" in second.stdout
    folder = workplace.folder / "sweep"
    runs = json.loads((folder / "sweep.json").read_text())["runs"]
    assert len(runs) == 6 and all((folder / run / "model" / "config.json").exists() for run in runs)
    here = megatron_sspo(workplace, *sweep(workplace, "here", "--seeds=3", "--at-once=2"))
    assert here.returncode == 0, here.stderr
    assert tables(workplace, "sweep") == tables(workplace, "here")


def test_what_a_sweep_sets_itself_is_refused(workplace) -> None:
    for words, variables, message in (
        (["--sbatch=--array=0-3"], {}, "--sbatch has --array or --comment, which the sweep sets itself"),
        ([f"--sbatch={SBATCH}"], {"RUN": "/x"}, "RUN is set, but each run of a sweep has its own folder"),
        ([f"--sbatch={SBATCH}"], {"RANKS_PER_NODE": "4"}, "the layout needs 1 ranks"),
    ):
        command = sweep(workplace, "refused", "--on", "slurm", *words)
        done = megatron_sspo(workplace, *command, **variables)
        assert done.returncode == 2 and message in done.stderr, done.stderr
