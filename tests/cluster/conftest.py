"""Every script of slurm/, executed by a real Slurm: `make test-cluster` brings the cluster up and takes it down."""

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
    """A folder with a recipe and the configuration of a tiny model, whose weights are random."""
    shutil.copy(HERE / "recipe.py", folder)
    shutil.copytree(ROOT / "examples" / "tiny_moe", folder / "config")
    config = json.loads((folder / "config" / "config.json").read_text())
    (folder / "config" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    return Workplace(folder)


@pytest.fixture
def workplace(tmp_path):
    """A new one for each test; afterwards nothing of it runs any more."""
    made = make_workplace(tmp_path)
    yield made
    end_jobs(made)


@pytest.fixture
def other_workplace(tmp_path_factory):
    """A second one, for a job beside the first."""
    made = make_workplace(tmp_path_factory.mktemp("other"))
    yield made
    end_jobs(made)


def end_jobs(made: Workplace) -> None:
    for job in made.jobs:
        call("scancel", job.id)
    for job in made.jobs:
        job.end()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run of a server and two trainers on three nodes, to the end."""
    made = make_workplace(tmp_path_factory.mktemp("trained"))
    job = made.train(SERVER_NODES=1)
    assert job.end() == "COMPLETED", job.logs()
    return job
