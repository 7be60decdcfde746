"""slurm/train.sbatch on several nodes, without interruptions."""

import json
import os
import signal
import stat
import subprocess
import sys

from megatron_sspo.weights.formats.hf_folder import HFFolder
from tests.cluster.slurm import CLUSTER, ROOT, call, processes


def check_metrics(job, updates=10):
    """Checks that every update has exactly one row, and that the run has learned."""
    rows = job.rows()
    assert [row["update"] for row in rows] == list(range(1, updates + 1)), job.logs()
    assert all(row["policy/grad_norm"] > 0 for row in rows)
    evaluations = [json.loads(line) for line in (job.run / "evaluations.jsonl").read_text().splitlines()]
    assert [row["update"] for row in evaluations] == [0, updates]
    assert evaluations[1]["additions/reward"] > evaluations[0]["additions/reward"]
    assert HFFolder(job.run / "model").shapes()


def test_a_server_on_one_node_and_trainers_on_two(trained) -> None:
    check_metrics(trained)
    assert trained.last_line().endswith(f"done: {trained.run}/model")
    attempt = trained.run / "slurm" / f"{trained.id}-0"
    assert {path.name for path in attempt.glob("*.log")} == {"server-n1.log", "trainer-n2.log", "trainer-n3.log"}
    urls = (attempt / "n1" / "urls").read_text().split()
    assert urls == [f"http://10.253.77.1:{20000 + int(trained.id) % 1000 * 12 + 1}"]
    log = attempt / "n1" / "servers" / "server-0.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    states = call("sacct", "--noheader", "--parsable2", "--jobs", trained.id, "--format=jobid,state").splitlines()
    assert f"{trained.id}|COMPLETED" in states


def test_a_plain_srun_of_several_tasks_is_refused(workplace) -> None:
    command = ("srun", "--ntasks=2", sys.executable, "-m", "megatron_sspo", "train", workplace.recipe)
    environment = {**os.environ, "SLURM_CONF": str(CLUSTER / "etc" / "slurm.conf"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=workplace.folder, env=environment, timeout=300, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "srun has started this command 2 times" in done.stderr
    assert not (workplace.folder / "runs").exists()


def test_servers_of_a_job_of_their_own_of_which_one_is_killed(workplace, tmp_path) -> None:
    """Only the owner can read the key of serve.sbatch, it is in no command line, and another job's trainer finds it.

    A killed server is restarted at the same place; the trainer waits for it, and sends it the weights.
    """
    folder = tmp_path / "servers"
    sizes = ("--nodes=1", "--time=30")
    serving = workplace.submit("serve.sbatch", workplace.recipe, options=sizes, RUN=folder, SERVERS_PER_NODE=2)
    serving.wait((folder / "urls").exists)
    key = (folder / "key").read_text().strip()
    assert len(key) == 64 and stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    job = workplace.train(SERVERS=folder)
    job.wait(lambda: len(job.rows()) >= 2)
    workplace.hold.touch()  # otherwise the run may end before the server is killed
    assert key not in call("ps", "-e", "-ww", "-o", "args")
    os.kill(next(pid for pid, line in processes("n1").items() if "sglang.launch_server" in line), signal.SIGKILL)
    workplace.hold.unlink()
    job.wait(lambda: job.state == "COMPLETED")
    check_metrics(job)
    assert "restarting a rollout server" in next(folder.glob("slurm/*/server-n1.log")).read_text()

    call("scancel", serving.id)
    assert serving.end() == "CANCELLED"
    last = "the servers have stopped: ended by Slurm; slurmstepd printed the reason above"
    assert serving.last_line().endswith(last), serving.log()
    assert not (folder / "key").exists() and not (folder / "urls").exists()
