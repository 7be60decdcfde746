"""Interrupted jobs: they are requeued and resume, or end with a clear last line."""

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.cluster.slurm import CLUSTER, HERE, ROOT, call, processes
from tests.cluster.test_train import check_metrics


def attempts(job):
    return sorted(path.name for path in (job.run / "slurm").iterdir())


def hold_in_the_middle(workplace, job, rows=3):
    """Makes the run wait after at least `rows` updates, within a cycle's rewards."""
    job.wait(lambda: len(job.rows()) >= rows)
    workplace.hold.touch()
    job.wait((workplace.folder / "held").exists)


def trainers(node):
    return [pid for pid, line in processes(node).items() if " train " in line and "bash" not in line]


def lower_time_limit(job):
    """Lowers the time limit, so that Slurm's warning comes soon; limits are in minutes, the warning a minute before."""
    hours, minutes, seconds = map(int, job.shown("RunTime").split(":"))
    limit = (3600 * hours + 60 * minutes + seconds + 75) // 60 + 1
    call("scontrol", "update", f"jobid={job.id}", f"timelimit={limit}")


def test_a_time_limit(workplace, other_workplace) -> None:
    """A job in the middle of a run saves, is requeued and resumes, on one server node and two trainer nodes. A job
    before the first update fails, because it would fail in the same way again. Both jobs run at the same time.
    """
    other_workplace.hold.touch()
    one = ("--set", "parallel.data=1", "--set", "parallel.expert=1")
    hopeless = other_workplace.train(*one, options=("--signal=B:USR1@60", "--nodes=1"))
    job = workplace.train(options=("--signal=B:USR1@60",), SERVER_NODES=1)
    hold_in_the_middle(workplace, job)
    for limited in (job, hopeless):
        lower_time_limit(limited)
    job.wait(lambda: "the time limit is near: the trainer finishes its update" in job.log())
    hopeless.wait(lambda: "the time limit is near" in hopeless.log())
    for limited in (job, hopeless):
        call("scontrol", "update", f"jobid={limited.id}", "timelimit=30")  # for the next attempt
    workplace.hold.unlink()
    other_workplace.hold.unlink()
    assert job.end() == "COMPLETED", job.logs()
    check_metrics(job)
    assert attempts(job) == [f"{job.id}-0", f"{job.id}-1"]
    assert "the time limit is near: requeued, to resume from the checkpoint: update-" in job.log()
    log = "".join(path.read_text() for path in job.run.glob(f"slurm/{job.id}-0/trainer-*.log"))
    assert "because SIGUSR1 came" in log and "a stop request takes at most" in log
    assert hopeless.end() == "FAILED"
    assert "the job ends: no update was finished within the time limit" in hopeless.last_line(), hopeless.logs()


def test_a_job_of_more_weight_takes_the_node_of_servers_and_trainers_in_containers(workplace) -> None:
    """Pre-emption sends SIGTERM to all processes at once: the servers must run until the trainer has ended."""
    for name in ("trainer.sqsh", "sglang.sqsh"):
        (workplace.folder / name).touch()
    images = {"CONTAINER": "trainer.sqsh", "SERVER_CONTAINER": "sglang.sqsh", "MOUNTS": "/usr:/data:ro"}
    job = workplace.train(
        options=("--nodes=1",),
        SERVER_NODES=0,
        SERVERS_PER_NODE=1,
        RANKS_PER_NODE=2,
        INTERFACE="eth0",
        **images,
    )
    hold_in_the_middle(workplace, job)
    check_environment("trainer.sqsh", job, " train ")
    server = check_environment("sglang.sqsh", job, "sglang.launch_server")

    urgent = workplace.folder / "urgent.sh"
    urgent.write_text("#!/bin/bash\nsleep 1\n")
    call("sbatch", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", urgent)
    job.wait(lambda: job.shown("PreemptTime") != "None")
    time.sleep(3)  # time for SIGTERM to take effect
    assert server in processes("n1"), job.logs()
    workplace.hold.unlink()
    assert job.end() == "COMPLETED", job.logs()
    check_metrics(job)
    assert attempts(job) == [f"{job.id}-0", f"{job.id}-1"]
    assert "the nodes are needed by another job: requeued" in job.log()
    assert "because SIGTERM came" in (job.run / "slurm" / f"{job.id}-0" / "trainer-n1.log").read_text()


def check_environment(image, job, role):
    """Checks the environment of a process of that role on n1 (Slurm, container plug-in, script); returns its pid."""
    pid = next(pid for pid, line in processes("n1").items() if role in line and not line.startswith("srun "))
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    environment = dict(variable.split("=", 1) for variable in variables if "=" in variable)
    assert environment["PYXIS_STUB_CONTAINER_IMAGE"] == str(job.folder / image)
    assert environment["PYXIS_STUB_CONTAINER_WORKDIR"] == str(ROOT)
    assert environment["PYXIS_STUB_CONTAINER_MOUNTS"] == f"{ROOT}:{ROOT},{job.run}:{job.run},/usr:/data:ro"
    assert environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    return pid


def test_scancel(workplace) -> None:
    """Slurm waits ten seconds between SIGTERM and SIGKILL, which is enough for a checkpoint of this run."""
    job = workplace.train("--set", "checkpoint_every=0")
    hold_in_the_middle(workplace, job)
    call("scancel", job.id)
    workplace.hold.unlink()
    assert job.end() == "CANCELLED"
    assert "slurmstepd-n1: error: *** JOB" in job.log() and "CANCELLED AT" in job.log(), job.logs()
    last = "the job ends: ended by Slurm; slurmstepd printed the reason above; the trainer has saved update-"
    assert last in job.last_line(), job.logs()


def test_a_rank_that_is_killed(workplace) -> None:
    job = workplace.train()
    job.wait(lambda: (job.run / "checkpoints" / "update-000004").exists())
    workplace.hold.touch()
    os.kill(trainers("n2")[0], signal.SIGKILL)
    workplace.hold.unlink()
    assert job.end() == "FAILED"
    last = job.last_line()
    assert "the job ends: the trainer was killed by SIGKILL; the newest checkpoint: update-" in last, job.logs()
    assert "--- the last lines of" in job.log()


def test_a_node_that_dies(workplace) -> None:
    """Slurm detects the dead node and requeues the job, which resumes in the layout of the one node that is left."""
    job = workplace.train(options=("--nodes=1-2",))
    job.wait(lambda: (job.run / "checkpoints" / "update-000004").exists())
    for spare in ("n3", "n4"):
        call("scontrol", "update", f"nodename={spare}", "state=drain", "reason=test")
    workplace.hold.touch()
    try:
        for pid in map(int, call("ip", "netns", "pids", "sspo-cluster-n2").split()):
            os.kill(pid, signal.SIGKILL)
        workplace.hold.unlink()
        assert job.end() == "COMPLETED", job.logs()
    finally:
        subprocess.run([HERE / "node.sh", "2"], check=True)
        for node in ("n2", "n3", "n4"):
            call("scontrol", "update", f"nodename={node}", "state=resume")
    check_metrics(job)
    assert attempts(job) == [f"{job.id}-0", f"{job.id}-1"]
    logs = {path.name: path.read_text() for path in (job.run / "slurm" / f"{job.id}-1").glob("trainer-*.log")}
    assert list(logs) == ["trainer-n1.log"]
    said = "the layout is one process, and was data 2, expert 2"
    assert said in " ".join(logs["trainer-n1.log"].split()), job.logs()


def test_a_file_that_stops_it_for_good(workplace) -> None:
    job = workplace.train()
    hold_in_the_middle(workplace, job)
    (job.run / "stop").touch()
    workplace.hold.unlink()
    assert job.end() == "COMPLETED", job.logs()
    assert f"stopped by {job.run}/stop, and not requeued" in job.last_line()
    assert not (job.run / "model").exists()


def test_a_folder_that_a_node_does_not_see(workplace) -> None:
    daemon = (CLUSTER / "run" / "slurmd.n2.pid").read_text().strip()
    inside = ["nsenter", "--target", daemon, "--mount"]
    subprocess.run([*inside, "mount", "-t", "tmpfs", "none", str(workplace.folder)], check=True)
    try:
        job = workplace.train()
        assert job.end() == "FAILED"
        assert job.last_line().endswith(
            f"n2 does not see {job.run}/slurm/{job.id}-0: use a folder that all nodes share"
        )
    finally:
        subprocess.run([*inside, "umount", str(workplace.folder)], check=True)


def test_servers_that_do_not_start(workplace) -> None:
    job = workplace.train("--set", "rollouts.options.server.no_such_option=1", SERVER_NODES=1)
    assert job.end() == "FAILED"
    assert "the job ends: the server ended with exit code 2" in job.last_line(), job.logs()
    assert "no-such-option" in job.log()
