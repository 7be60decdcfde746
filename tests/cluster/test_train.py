"""slurm/train.sbatch on several nodes, undisturbed."""

import json
import os
import stat
from pathlib import Path

from megatron_sspo.weights.hf_folder import HFFolder
from tests.cluster.slurm import call, processes


def check_metrics(job, updates=10):
    """Every update has its row once, and the run has learned."""
    rows = job.rows()
    assert [row["update"] for row in rows] == list(range(1, updates + 1)), job.logs()
    assert all(row["policy/grad_norm"] > 0 for row in rows)
    evaluations = [json.loads(line) for line in (job.run / "evaluations.jsonl").read_text().splitlines()]
    assert [row["update"] for row in evaluations] == [0, updates]
    assert evaluations[1]["reward"] > evaluations[0]["reward"]
    assert HFFolder(job.run / "model").index


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


def test_servers_of_a_job_of_their_own(workplace, tmp_path) -> None:
    """serve.sbatch; its key is for its owner alone, and in no command line; the trainer of another job finds it."""
    folder = tmp_path / "servers"
    serving = workplace.submit(
        "serve.sbatch", workplace.recipe, options=("--nodes=1", "--time=30"), RUN=folder, SERVERS_PER_NODE=1
    )
    serving.wait((folder / "urls").exists)
    key = (folder / "key").read_text().strip()
    assert len(key) == 64 and stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert key not in call("ps", "-e", "-ww", "-o", "args")
    job = workplace.train("--set", "num_updates=2", SERVERS=folder)
    job.wait(lambda: job.state == "COMPLETED")
    check_metrics(job, updates=2)

    call("scancel", serving.id)
    assert serving.end() == "CANCELLED"
    assert serving.last_line().endswith(
        "the servers are gone: Slurm has ended it, for the reason that slurmstepd gives above"
    ), serving.log()
    assert not (folder / "key").exists() and not (folder / "urls").exists()


def test_servers_and_trainers_on_the_same_nodes_in_containers_and_a_server_that_is_killed(workplace) -> None:
    """The server is started again where it was; the trainer waits for it and sends it the weights."""
    images = {"CONTAINER": "trainer.sqsh", "SERVER_CONTAINER": "sglang.sqsh", "MOUNTS": "/data:/data:ro"}
    job = workplace.train(
        "--set", "parallel.data=1", "--set", "parallel.expert=1",
        options=("--nodes=1",), SERVER_NODES=0, SERVERS_PER_NODE=1, INTERFACE="eth0", **images,
    )  # fmt: skip
    job.wait(lambda: len(job.rows()) >= 2)
    workplace.hold.touch()
    seen = {}
    for pid, line in processes("n1").items():
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        environment = dict(variable.split("=", 1) for variable in variables if "=" in variable)
        role = "server" if "sglang.launch_server" in line else "trainer" if " train " in line else ""
        if role:
            seen[role] = (pid, environment)
    for role, image in (("trainer", "trainer.sqsh"), ("server", "sglang.sqsh")):
        environment = seen[role][1]
        assert environment["PYXIS_STUB_CONTAINER_IMAGE"] == image
        assert environment["PYXIS_STUB_CONTAINER_MOUNTS"].endswith(f",{job.run}:{job.run},/data:/data:ro")
        assert environment["GLOO_SOCKET_IFNAME"] == "eth0"
        assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    os.kill(seen["server"][0], 9)
    workplace.hold.unlink()
    assert job.end() == "COMPLETED", job.logs()
    check_metrics(job)
    assert "a rollout server is started again" in (next(job.run.glob("slurm/*/server-n1.log"))).read_text()
