"""Small syncs to real servers. After each the engine compares the checksum of every tensor on every rank."""

import os
import signal

import pytest
import torch

from megatron_sspo.preflight import resources
from megatron_sspo.rollout.engines import sglang
from tests.sglang.served import PROMPTS, SAMPLING, generate, until, weights

CHANGED = 0.02  # of the elements, between two syncs


class Trained:
    """The weights of a model in training."""

    def __init__(self, folder):
        self._weights = dict(weights(folder))
        self._generator = torch.Generator().manual_seed(0)
        self._version = -1

    def sync(self, engine, hook=lambda: None):
        """Changes some elements and sends the weights. Returns "all" or "some", by the number of bytes.

        Args:
            hook: called in the middle of the stream.
        """
        for tensor in self._weights.values():
            is_changed = torch.rand(tensor.shape, generator=self._generator) < CHANGED
            tensor.add_(torch.randn(tensor.shape, generator=self._generator) * 0.02 * is_changed)
        self._version += 1
        engine.load_weights(self._stream(hook), self._version)
        share = engine.metrics()["sync/gigabytes"] * 1e9 / sum(tensor.nbytes for tensor in self._weights.values())
        assert share == 1 or share < 0.06
        return "all" if share == 1 else "some"

    def _stream(self, hook):
        for number, pair in enumerate(self._weights.items()):
            if number == 10:
                hook()
            yield pair


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_two_servers_of_which_one_is_killed(folders, tmp_path, kind):
    engine = sglang.engine(
        folders[kind], num_servers=2, run_folder=tmp_path, verify_every=1, delta=8, bucket_bytes=10_000
    )
    try:
        trained, (first, second) = Trained(folders[kind]), engine.pool.servers
        assert [trained.sync(engine) for _ in range(10)] == ["all", *["some"] * 7, "all", "some"]
        assert trained.sync(engine, lambda: os.killpg(first.process.pid, signal.SIGKILL)) == "some"
        assert (first.version, second.version) == (None, 10)
        until(lambda: engine._restart_failed() or engine._run(engine.pool.check()) or first.is_up, 120)
        assert [trained.sync(engine) for _ in range(9)] == ["all", *["some"] * 7, "all"]
        assert (first.version, second.version) == (19, 19)
        generate(engine, PROMPTS, SAMPLING, group_size=1, seed=0)
    finally:
        engine.close()


@pytest.mark.parametrize(("kind", "dtype"), [("dense", "bfloat16"), ("moe", "float32")])
def test_a_server_of_two_ranks_and_all_transports(folders, tmp_path, monkeypatch, kind, dtype):
    """Servers that another process owns may be restarted by it: then they report another version."""
    server = {"tp_size": 2, "dtype": dtype}
    options = {"server": server, "run_folder": tmp_path, "verify_every": 1, "delta": 9}
    owner = sglang.engine(folders[kind], **options)
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", owner.key)
    (owned,) = owner.pool.servers
    try:
        resources.check_servers([owned.client.url], 2, delta=True)
        for transport in ("tensor", "distributed", "disk"):
            engine = sglang.engine(folders[kind], urls=[owned.client.url], transport=transport, **options)
            trained = Trained(folders[kind])
            assert [trained.sync(engine) for _ in range(3)] == ["all", "some", "some"]
            other = {"new_version": "default", "abort_all_requests": False}
            owner._run(owned.client.post("/update_weight_version", other, seconds=10))
            assert [trained.sync(engine) for _ in range(2)] == ["all", "some"]
            engine.close()
    finally:
        owner.close()
