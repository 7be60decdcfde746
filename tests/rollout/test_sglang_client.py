"""Requests to a faulty server, over real sockets."""

import asyncio
import socket

import pytest

from megatron_sspo.rollout.servers import client as client_module
from megatron_sspo.rollout.servers.client import Client, ServerError


def http(status, body):
    return f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


async def ask(url, seconds=5.0, content=None):
    client = Client(url, "key")
    try:
        return await client.post("/a", content or {}, seconds=seconds)
    finally:
        await client.close()


def answered(answer):
    """Sends a request to a server that answers with these bytes and closes the connection; returns the result."""

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        writer.close()

    async def once():
        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            return await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("answer", "message", "is_rejected"),
    [
        (None, "ServerDisconnectedError", False),
        (b"no http", "/a: ", False),
        (http(200, "{"), "did not answer with JSON", False),
        (http(500, "oh"), "answered 500: oh", False),
        (http(400, "what?"), "answered 400: what", True),
        (http(200, '{"success": false, "message": "no"}'), "/a: no", True),
        # a redirected POST request would become a GET request, with the key, to another address
        (b"HTTP/1.1 301 x\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n", "/a answered 301", False),
    ],
)
def test_a_failure_is_a_server_error(answer, message, is_rejected):
    with pytest.raises(ServerError, match=message) as raised:
        answered(answer)
    assert raised.value.is_rejected == is_rejected


def test_idle_connections_are_not_used_again(monkeypatch):
    """Covers SGLang's keep-alive timeout: it silently closes a connection that is idle for 5 seconds."""
    monkeypatch.setattr(client_module, "_KEEPALIVE_SECONDS", 0.1)
    connections = []

    async def handle(reader, writer):
        connections.append(writer)
        while await reader.readuntil(b"{}"):
            writer.write(http(200, "{}"))

    async def twice():
        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "")
            for pause in (0.0, 0.3, 0.0):
                await asyncio.sleep(pause)
                await client.post("/generate", {}, seconds=5)
            await client.close()

    asyncio.run(twice())
    assert len(connections) == 2


def test_timeout_and_refused_connection():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ServerError, match="did not answer within 0 s"),
    ):
        asyncio.run(ask(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.2))
    with pytest.raises(ServerError, match="/a: ClientConnectorError"):
        asyncio.run(ask("http://127.0.0.1:1"))
