"""Servers that the run does not own, and that fail again and again."""

import asyncio

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.servers import pool as servers
from megatron_sspo.rollout.servers.client import Client
from megatron_sspo.rollout.servers.pool import Server, ServerPool


class Healthy(Client):
    """A client of a server that always generates a token."""

    def __init__(self):
        super().__init__("http://127.0.0.1:1", "")

    async def post(self, path, content, *, seconds):
        return {}

    async def is_healthy(self, *, seconds):
        return True


def test_a_server_that_never_takes_the_weights_is_given_up(caplog):
    """The server answers every check of its health, so it comes up again after each removal."""
    server = Server(Healthy())
    pool = ServerPool([server], key="", min_servers=1, max_restarts=0, health_seconds=5.0)

    async def fail(times):
        for _ in range(times):
            await pool.await_any()
            assert server.is_up
            pool.remove(server, "it did not answer within 600 s")

    asyncio.run(fail(servers._MAX_REMOVALS - 1))
    pool.restart_failed()
    server.num_removals = 0  # as after an answer to a request
    with pytest.raises(UserError, match="0 of 1 rollout servers are left, and 1 are needed: it did not answer"):
        asyncio.run(fail(servers._MAX_REMOVALS))
        asyncio.run(pool.await_any())
        pool.restart_failed()
    assert not server.is_up
    assert "http://127.0.0.1:1 gets no requests until it is healthy: it did not answer within 600 s" in caplog.text
