"""A training job through NeMo-Run's SlurmExecutor, which follows it to its end, through a warning and a requeue."""

import subprocess
import sys
import time

import pytest

from tests.cluster.slurm import NEMO_RUN_PYTHON, ROOT, Job, call, environment
from tests.cluster.test_interruptions import attempts, hold_in_the_middle
from tests.cluster.test_train import check_metrics


@pytest.fixture
def experiment(workplace):
    """A function experiment(VARIABLE=value) that returns the process that started the experiment, and the job."""
    started = []

    def start(**variables: str) -> tuple["subprocess.Popen[str]", Job]:
        options = "--nodes=2 --time=30 --gpus-per-node=2"
        command = [sys.executable, "-m", "megatron_sspo", "launch", f"{workplace.recipe}:embedded"]
        given = {"SERVER_NODES": 0, "SERVERS_PER_NODE": 0, "RUN": f"{workplace.folder}/run", **variables}
        homes = {"PYTHONPATH": ROOT, "NEMO_RUN_PYTHON": NEMO_RUN_PYTHON, "NEMORUN_HOME": f"{workplace.folder}/nemo"}
        log = workplace.folder / "experiment.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [*command, "--on", "nemo-run", f"--sbatch={options}"],
                env=environment(**given, **homes),
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                text=True,
            )
        started.append(process)
        deadline = time.monotonic() + 120
        while "Launched app: slurm_tunnel://nemo_run/" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        number = log.read_text().partition("slurm_tunnel://nemo_run/")[2].split()[0]
        workplace.jobs.append(Job(number, workplace.folder))
        return process, workplace.jobs[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def last_line(workplace) -> str:
    return (workplace.folder / "experiment.log").read_text().strip().splitlines()[-1]


def test_it_saves_at_a_warning_and_is_followed_through_the_requeue(workplace, experiment) -> None:
    process, job = experiment()
    hold_in_the_middle(workplace, job)
    call("scancel", "--batch", "--signal=USR1", job.id)  # as Slurm does before the time limit
    log = next((workplace.folder / "nemo").glob("experiments/*/*/train/log-*_0.out"))
    job.wait(lambda: "the trainer finishes its update" in log.read_text())
    workplace.hold.unlink()
    assert job.end() == "COMPLETED", job.logs()
    assert process.wait(timeout=120) == 0, (workplace.folder / "experiment.log").read_text()
    assert last_line(workplace).endswith(": SUCCEEDED")
    check_metrics(job)
    assert attempts(job) == [f"{job.id}-0", f"{job.id}-1"]


def test_one_that_fails_has_an_exit_code(workplace, experiment) -> None:
    process, job = experiment(PYTHON="/bin/false")
    assert job.end() == "FAILED"
    assert process.wait(timeout=120) == 1
    assert last_line(workplace).endswith(": FAILED")
