"""The router's restarts, with a stand-in for its process."""

import asyncio
from types import SimpleNamespace

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engines.sglang import SGLangEngine
from megatron_sspo.rollout.servers.router import Router

SERVERS = {"http://a"}


class _Process:
    """A process of the router that ends before its first answer, `num_deaths` times."""

    url, log = "http://127.0.0.1:1", "router.log"

    def __init__(self, num_deaths):
        self.num_deaths, self.num_starts, self.has_ended = num_deaths, 0, False

    def start(self):
        self.num_starts, self.has_ended = self.num_starts + 1, False

    def stop(self):
        pass

    def exit_message(self):
        self.has_ended = self.has_ended or self.num_starts <= self.num_deaths
        return "killed by SIGKILL" if self.has_ended else ""


@pytest.mark.parametrize(("num_deaths", "is_ready"), [(0, True), (2, True), (3, False)])
def test_a_router_that_ends_while_weights_are_sent_is_restarted(monkeypatch, num_deaths, is_ready):
    async def workers(_):
        return [{"url": url, "id": "1", "is_healthy": True} for url in SERVERS]

    monkeypatch.setattr(Router, "_workers", workers)
    process = _Process(num_deaths)
    engine = SGLangEngine.__new__(SGLangEngine)
    engine._router, engine._run = Router(process, "key", max_restarts=2), asyncio.run
    engine.pool = SimpleNamespace(urls=lambda: SERVERS)
    if not is_ready:
        with pytest.raises(UserError, match="the router of the rollout servers ended: killed by SIGKILL"):
            engine._register_servers()
        return
    engine._register_servers()
    assert engine._router.is_ready and process.num_starts == 1 + num_deaths
