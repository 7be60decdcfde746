"""Processes of a job under various options of sbatch and images of containers; the trainer is a stand-in."""

import os
import re
from pathlib import Path

import pytest

from megatron_sspo.project.new import TEMPLATE
from tests.cluster.slurm import CLUSTER, ROOT, Workplace

_SHOWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def ranks(workplace: Workplace):
    """A function that runs a job of two nodes with two ranks each; returns node -> ranks' variables, and the job."""

    def start(*options: str, script: str | Path = "train.sbatch", **variables: object):
        shown = program(
            workplace.folder / "shown", "echo $SLURMD_NODENAME " + " ".join(f"{name}=${name}" for name in _SHOWN)
        )
        given = {"PYTHON": shown, "RANKS_PER_NODE": "", "SERVER_NODES": 0, "SERVERS_PER_NODE": 0, **variables}
        gpus = str(given.pop("gpus", "--gpus-per-node=2"))
        job = workplace.submit(script, "recipe.py", options=("--nodes=2", "--time=5", *options), gpus=gpus, **given)
        job.end()
        found = {}
        for log in sorted(job.run.glob("slurm/*/trainer-*.log")):
            lines = [line.split(" ") for line in log.read_text().splitlines() if " RANK=" in line]
            each = [dict(word.split("=", 1) for word in words[1:]) for words in lines]
            found[log.stem.removeprefix("trainer-")] = sorted(each, key=lambda one: int(one["RANK"]))
        return found, job

    return start


@pytest.mark.parametrize(
    ("gpus", "options"),
    [
        ("--gpus-per-node=2", ()),
        ("--gres=gpu:2", ()),
        ("--gpus=4", ()),
        ("--gpus-per-task=2 --ntasks-per-node=1", ()),
        ("--gpus-per-task=1 --ntasks-per-node=2", ()),
        ("--gpus-per-node=8", ("--gres=gpu:2",)),
        ("--gpus-per-node=2", ("--distribution=cyclic", "--cpus-per-task=2", "--gpu-bind=single:1")),
        ("--gpus-per-node=2", ("--export=PROJECT,PYTHON,RUN,SERVER_NODES,SERVERS_PER_NODE",)),
    ],
)
def test_ranks_are_in_the_order_of_nodes_and_see_the_gpus_of_theirs(workplace, ranks, gpus, options) -> None:
    lines = (ROOT / "slurm" / "train.sbatch").read_text().splitlines(keepends=True)
    script = workplace.folder / "train.sbatch"
    script.write_text("".join(line for line in lines if "--gpus-per-node" not in line))
    of_another_job = {"SLURM_GPUS_PER_NODE": 1, "SLURM_TRES_PER_TASK": "cpu:1"}  # in which sbatch was called
    found, job = ranks(*options, gpus=gpus, script=script, **of_another_job)
    assert list(found) == ["n1", "n2"], job.logs()
    for node, first in (("n1", 0), ("n2", 2)):
        assert [one["RANK"] for one in found[node]] == [str(first), str(first + 1)], job.logs()
        assert [one["LOCAL_RANK"] for one in found[node]] == ["0", "1"]
        for one in found[node]:
            assert (one["CUDA_VISIBLE_DEVICES"], one["MASTER_ADDR"], one["WORLD_SIZE"]) == ("0,1", "10.253.77.1", "4")


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_an_image_of_the_jobs_folder_whose_own_variables_do_not_hide_the_jobs(workplace, ranks, runtime) -> None:
    """enroot's hook for PyTorch sets MASTER_ADDR in an image, and images set PYTHONPATH and have their own python3."""
    (workplace.folder / "image").mkdir()
    shown = "echo $SLURMD_NODENAME " + " ".join(f"{name}=${name}" for name in _SHOWN)
    program(workplace.folder / "image" / "python3", shown)
    of_image = {
        "PATH": f"{workplace.folder}/image:/usr/bin:/bin",
        "MASTER_ADDR": "192.0.2.1",
        "MASTER_PORT": "1",
        "RANK": "0",
        "PYTHONPATH": "/image",
    }
    name = "trainer.sqsh" if runtime == "pyxis" else "trainer.sif"
    (workplace.folder / name).write_text("".join(f"{key}={value}\n" for key, value in of_image.items()))
    (workplace.folder / "bin").mkdir()
    arguments = workplace.folder / "arguments"
    program(  # a stand-in for apptainer
        workplace.folder / "bin" / "apptainer",
        f'echo "$@" >{arguments}; while [[ $1 != *.sif ]]; do shift; done; exec env $(<"$1") "${{@:2}}"',
    )
    variables = {"CONTAINER": name, "PYTHON": "", "PATH": f"{workplace.folder}/bin:{os.environ['PATH']}"}
    found, job = ranks(MOUNTS=f"{CLUSTER}:/data:ro", **variables)
    assert list(found) == ["n1", "n2"], job.logs()
    assert [one["RANK"] for one in found["n2"]] == ["2", "3"]
    for one in (*found["n1"], *found["n2"]):
        assert one["MASTER_ADDR"] == "10.253.77.1" and one["MASTER_PORT"] != "1"
        assert one["PYTHONPATH"] == f"{ROOT}:/image"
    if runtime == "apptainer":
        mounts = f"{ROOT}:{ROOT},{job.run}:{job.run},{CLUSTER}:/data:ro"
        given = f"exec --nv --no-home --bind {mounts} --pwd {ROOT} {workplace.folder}/trainer.sif bash -c"
        assert arguments.read_text().startswith(given)


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        ((":", "--nodes=1"), {}, "a heterogeneous job would run on its first part alone"),
        ((), {"CONTAINER": "typo.sqsh"}, "CONTAINER=typo.sqsh does not exist in {}: write the whole path of the image"),
        (
            (),
            {"MOUNTS": "/typo:/data", "CONTAINER": "./own", "RANKS_PER_NODE": 1},
            "the trainer ended with exit code 1",
        ),
        (("--ntasks=3",), {"RANKS_PER_NODE": 2}, "is more than the job's processors on a node (1): sbatch --cpus-per"),
    ],
)
def test_what_is_refused_in_the_last_line(workplace, ranks, options, variables, message) -> None:
    text = (ROOT / "slurm" / "train.sbatch").read_text()
    (workplace.folder / "train.sbatch").write_text(text.replace("#SBATCH --exclusive\n", ""))
    (workplace.folder / "own").touch()
    found, job = ranks(*options, script=workplace.folder / "train.sbatch", **variables)
    assert not any(found.values()) and job.state == "FAILED"
    assert message.format(workplace.folder) in job.last_line(), job.log()
    if "MOUNTS" in variables:
        assert "any other folder needs MOUNTS=/folder:/folder" in job.log()


def test_a_projects_script_has_processors_for_two_gpus(ranks) -> None:
    script = TEMPLATE / "slurm" / "train.sbatch"
    found, job = ranks("--nodes=1", "--mem=0", script=script, gpus="--gres=gpu:2")
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found["n1"]] == ["0,1", "0,1"], job.logs()


def test_a_job_that_fails_is_requeued_until_it_saves_no_more(workplace, ranks) -> None:
    """The trainer fails always, after a checkpoint in the first attempt: a job that comes no further ends.

    sbatch is called in a job of an array, whose variables it passes on.
    """
    folder = workplace.folder / "run" / "checkpoints" / "update-000001"
    failing = program(workplace.folder / "failing", f"mkdir -p {folder}; exit 1")
    of_another_job = {"SLURM_ARRAY_JOB_ID": 1, "SLURM_ARRAY_TASK_ID": 1, "SLURM_HET_SIZE": 2}
    _, job = ranks(PYTHON=failing, RESTART=1, **of_another_job)
    assert sorted(path.name for path in (job.run / "slurm").iterdir()) == [f"{job.id}-0", f"{job.id}-1"], job.logs()
    assert job.state == "FAILED"
    assert re.search("the trainer has failed: requeued, to resume from the checkpoint: update-000001", job.log())
    assert job.last_line().endswith("the trainer ended with exit code 1; the newest checkpoint: update-000001")
