"""Real SGLang servers on this machine's CPU: `make install-sglang` brings them, `make test-sglang` runs these tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))  # its tiny models

from megatron_sspo.rollout import sglang
from megatron_sspo.run import Parallel
from tests.policy import tiny_policy
from tests.sglang.served import weights


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sglang)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Kind -> the Hugging Face folder of that tiny model."""
    root = tmp_path_factory.mktemp("models")
    return {kind: tiny_policy.save(kind, root / kind) for kind in ("moe", "dense")}


@pytest.fixture(scope="session")
def engines(folders, tmp_path_factory):
    """Kind -> an engine with a server of its own, started when it is first asked for."""
    started = {}

    def of(kind):
        if kind not in started:
            folder = tmp_path_factory.mktemp("run")
            started[kind] = sglang.engine(folders[kind], run_folder=folder, routes=kind == "moe", verify_every=1)
        return started[kind]

    yield of
    for engine in started.values():
        engine.close()


@pytest.fixture
def attach(engines, folders, tmp_path, monkeypatch):
    """attach(...): an engine with weights, on the dense model's server that `engines` has started."""
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
    """start(num_servers, kind, ...): an engine with weights, of servers of its own."""
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
    """This process as a job of one."""
    from megatron_sspo.policy.distributed import initialize, shutdown

    yield initialize(Parallel(), seed=0)
    shutdown()
