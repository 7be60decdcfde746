"""Fixtures with real SGLang servers on the CPU: `make install-sglang` installs SGLang, `make test-sglang` runs them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))  # for `tiny_policy`

from megatron_sspo.rollout.engines import sglang
from megatron_sspo.run import Parallel
from tests.policy import tiny_policy
from tests.sglang.forked_servers import forked_servers
from tests.sglang.served import weights


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sglang)


@pytest.fixture(scope="session", autouse=True)
def _forked():
    with forked_servers():
        yield


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Maps each kind to the Hugging Face folder of a tiny model."""
    root = tmp_path_factory.mktemp("models")
    return {kind: tiny_policy.save(kind, root / kind) for kind in ("moe", "dense", "glm4", "mla")}


@pytest.fixture(scope="session")
def engines(folders, tmp_path_factory):
    """Returns a function from a kind to an engine with its own server, which starts at the first call."""
    started = {}

    def of(kind):
        if kind not in started:
            folder = tmp_path_factory.mktemp("run")
            started[kind] = sglang.engine(folders[kind], run_folder=folder, routes=kind != "dense", verify_every=1)
        return started[kind]

    yield of
    for engine in started.values():
        engine.close()


@pytest.fixture
def attach(engines, folders, tmp_path, monkeypatch):
    """Returns a function `attach(...)` that builds an engine with weights on the dense server of `engines`."""
    owner = engines("dense")
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", owner.key)
    made = []

    def of(**options):
        urls = [server.client.url for server in owner.pool.servers]
        engine = sglang.engine(folders["dense"], urls=urls, run_folder=tmp_path, verify_every=1, **options)
        made.append(engine)
        engine.load_weights(weights(folders["dense"]), 0)
        return engine

    yield of
    for engine in made:
        engine.close()


@pytest.fixture
def start(folders, tmp_path):
    """Returns a function `start(num_servers, kind, ...)` that builds an engine with weights and its own servers."""
    made = []

    def of(num_servers=1, kind="dense", **options):
        engine = sglang.engine(folders[kind], num_servers=num_servers, run_folder=tmp_path, verify_every=1, **options)
        made.append(engine)
        engine.load_weights(weights(folders[kind]), 0)
        return engine

    yield of
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def device():
    """Initializes torch.distributed with this process alone."""
    from megatron_sspo.policy.distributed import initialize, shutdown

    yield initialize(Parallel(), seed=0)
    shutdown()
