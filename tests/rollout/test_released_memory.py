"""The order in which trainer and servers use a GPU's memory: a stand-in for a server records the requests."""

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest
import torch

from megatron_sspo.processes import agree
from megatron_sspo.rollout.engines import sglang
from tests.rollout import tiny_models


@contextmanager
def recording_server(events):
    """Serves every request with an empty JSON object, and appends its path to `events`; yields the URL."""
    loop = asyncio.new_event_loop()

    async def handle(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode().split("\r\n")
            length = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0)
            await reader.readexactly(length)
            events.append(lines[0].split()[1].partition("?")[0])
            body = json.dumps({"success": True}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    async def quiet(reader, writer):
        try:
            await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = loop.run_until_complete(asyncio.start_server(quiet, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def events(monkeypatch):
    """The requests to the server, the freeing of the trainer's memory, and the barriers, in order."""
    found = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("empty_cache"))
    monkeypatch.setattr(agree, "barrier", lambda: found.append("barrier"))
    return found


def order(events, *names):
    """Returns the events of these names, in the order in which they happened."""
    return [event for event in events if event in names]


RELEASE, RESUME = "/release_memory_occupation", "/resume_memory_occupation"


def test_the_trainer_frees_its_memory_before_the_servers_take_theirs(folders, events):
    folder = folders["llama_tied"]
    weights = tiny_models.weights(folder)
    with recording_server(events) as url:
        engine = sglang.engine(folder, urls=[url], verify_every=0, release_memory=True)
        try:
            assert events[:2] == ["empty_cache", "barrier"], "a server that starts measures the free memory"
            engine.load_weights(weights.items(), 1)
            events.clear()
            engine.release_memory()
            expected = ["/pause_generation", "/flush_cache", RELEASE, "barrier"]
            assert order(events, *expected) == expected
            engine.load_weights(weights.items(), 2)
            expected = [RELEASE, "barrier", "empty_cache", "barrier", RESUME, "/begin_weight_update"]
            assert order(events, *expected) == expected
        finally:
            engine.close()


@pytest.mark.parametrize("shares_gpus", [True, False])
def test_other_ranks_free_theirs_too_and_wait(folders, events, monkeypatch, shares_gpus):
    monkeypatch.setattr(agree, "is_main", lambda: False)
    engine = sglang.engine(folders["llama_tied"], urls=["http://127.0.0.1:1"], release_memory=shares_gpus)
    engine.release_memory()
    engine.load_weights([], 1)
    handed_over = ["empty_cache", "barrier"]
    assert events == ([*handed_over, "barrier", *handed_over] if shares_gpus else [])
    engine.close()
