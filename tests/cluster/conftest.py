"""Fixtures for tests of slurm/ on a real Slurm: `make test-cluster` starts the cluster and removes it afterwards."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.slurm import CLUSTER, HERE, ROOT, Workplace, call


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session", autouse=True)
def cluster():
    assert (CLUSTER / "env.sh").exists(), "the cluster is down: tests/cluster/up.sh, or make test-cluster"


def make_workplace(folder: Path) -> Workplace:
    """Makes a folder with a recipe and the configuration of a tiny model with random weights."""
    shutil.copy(HERE / "recipe.py", folder)
    shutil.copytree(ROOT / "examples" / "tiny_moe", folder / "config")
    config = json.loads((folder / "config" / "config.json").read_text())
    (folder / "config" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    return Workplace(folder)


def new_workplace(tmp_path_factory):
    """A new workplace for each test; all of its jobs are ended afterwards."""
    made = make_workplace(tmp_path_factory.mktemp("workplace"))
    yield made
    end_jobs(made)


workplace = pytest.fixture(new_workplace)
other_workplace = pytest.fixture(new_workplace)  # for a job at the same time as the first


def end_jobs(made: Workplace) -> None:
    for job in made.jobs:
        call("scancel", job.id)
    for job in made.jobs:
        job.end()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run with a server and two trainers on three nodes."""
    made = make_workplace(tmp_path_factory.mktemp("trained"))
    job = made.train(SERVER_NODES=1)
    assert job.end() == "COMPLETED", job.logs()
    return job
