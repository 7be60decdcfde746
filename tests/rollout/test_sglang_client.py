"""Requests to a faulty server, over real sockets."""

import asyncio
import gzip
import socket

import pytest

from megatron_sspo.rollout.servers import client as client_module
from megatron_sspo.rollout.servers.client import Client, ServerError


async def served(answers, requests):
    """Runs `requests` against a server that sends one of `answers` per connection and closes it; returns the result."""
    count = 0

    async def handle(reader, writer):
        nonlocal count
        await reader.readuntil(b"\r\n\r\n")
        answer = answers[min(count, len(answers) - 1)]
        count += 1
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "key")
    try:
        return await requests(client)
    finally:
        await client.close()
        server.close()


def http(status, body):
    return f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def gzipped(body):
    """A small answer that becomes a large one."""
    packed = gzip.compress(body)
    return f"HTTP/1.1 200 x\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode() + packed


def test_a_closed_connection_is_reopened():
    """Covers SGLang's keep-alive timeout: it silently closes a connection that is idle for 5 seconds."""

    async def twice(client):
        first = await client.post("/a", {"n": 1}, seconds=5)
        await asyncio.sleep(0.2)
        return first, await client.post("/a", {"big": "x" * 10_000_000}, seconds=5)

    assert asyncio.run(served([http(200, '{"n": 1}'), None, http(200, '{"n": 2}')], twice)) == ({"n": 1}, {"n": 2})


@pytest.mark.parametrize("path", client_module._SENT_ONCE)
def test_a_request_that_may_have_begun_is_not_sent_twice(path):
    """Covers requests whose second would be rejected as a duplicate, or would wait for a broadcast without end."""

    async def once(client):
        with pytest.raises(ServerError, match=f"{path}: ServerDisconnectedError"):
            await client.post(path, {}, seconds=5)
        return await client.post(path, {}, seconds=5)

    assert asyncio.run(served([None, http(200, '{"n": 2}')], once)) == {"n": 2}


def test_a_redirection_is_not_followed():
    """A redirected POST request would become a GET request, with the key, to another address."""
    moved = b"HTTP/1.1 301 x\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"

    async def once(client):
        return await client.post("/a", {}, seconds=5)

    with pytest.raises(ServerError, match="/a answered 301"):
        asyncio.run(served([moved, http(200, '{"n": 2}')], once))


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_name_that_no_host_can_have(host):
    async def once():
        client = Client(f"http://{host}:1", "")
        try:
            await client.get("/a", seconds=5)
        finally:
            await client.close()

    with pytest.raises(ServerError, match=f"http://{host}:1/a: "):
        asyncio.run(once())


@pytest.mark.parametrize(
    ("answer", "message", "is_rejected"),
    [
        (None, "ServerDisconnectedError", False),
        (b"no http", "/a: ", False),
        (http(200, "[1]"), "JSON that is not an object", False),
        (http(200, "{"), "did not answer with JSON", False),
        (http(200, "[" * 100_000), "did not answer with JSON", False),
        (http(500, "oh"), "answered 500: oh", False),
        (
            b"HTTP/1.1 200 x\r\nContent-Type: a; charset=hex\r\nContent-Length: 2\r\n\r\n<p",
            "not answer with JSON",
            False,
        ),
        (b"HTTP/1.1 200 x\r\nContent-Length: 1\r\n\r\n\xff", "UnicodeDecodeError", False),
        (http(200, '{"a": "' + "x" * 200_000 + '"}'), "answered with more than 200,000 bytes", False),
        (gzipped(b'{"a": "' + b"x" * 10**6 + b'"}'), "answered with more than 200,000 bytes", False),
        (http(503, "busy"), "answered 503: busy", False),
        (http(400, "what?"), "answered 400: what", True),
        (http(200, '{"success": false, "message": "no"}'), "/a: no", True),
    ],
)
def test_malformed_answers(answer, message, is_rejected, monkeypatch):
    monkeypatch.setattr(client_module, "_LONGEST_ANSWER", 200_000)

    async def once(client):
        return await client.post("/a", {}, seconds=5)

    with pytest.raises(ServerError, match=message) as raised:
        asyncio.run(served([answer], once))
    assert raised.value.is_rejected == is_rejected


def test_an_empty_answer():
    async def once(client):
        return await client.get("/a", seconds=5)

    assert asyncio.run(served([http(200, "")], once)) == asyncio.run(served([http(200, "null")], once)) == {}


def test_timeout_and_refused_connection():
    async def silent():
        server = await asyncio.start_server(lambda *_: asyncio.sleep(10), "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "")
        try:
            await client.get("/a", seconds=0.2)
        finally:
            await client.close()
            server.close()

    with pytest.raises(ServerError, match="did not answer within 0 s"):
        asyncio.run(silent())

    async def nobody():
        await Client("http://127.0.0.1:1", "").get("/a", seconds=5)

    with pytest.raises(ServerError, match="/a: ClientConnectorError"):
        asyncio.run(nobody())


def test_a_machine_that_does_not_answer(monkeypatch):
    """Uses a socket whose queue of connections is full: Linux then ignores further ones."""
    monkeypatch.setattr(client_module, "_CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())

        async def once():
            client = Client(f"http://127.0.0.1:{full.getsockname()[1]}", "")
            try:
                await client.get("/a", seconds=600)
            finally:
                await client.close()

        with pytest.raises(ServerError, match="did not accept a connection within 0 s"):
            asyncio.run(once())
        for each in waiting:
            each.close()
