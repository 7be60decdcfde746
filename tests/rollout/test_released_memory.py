"""The order in which trainer and servers use a GPU's memory: a stand-in for a server records the requests."""

from contextlib import contextmanager

import pytest
import torch
from aiohttp import web

from megatron_sspo.processes import agree
from megatron_sspo.rollout.engines import sglang
from tests.rollout import tiny_models


@contextmanager
def recording_server(events, submit):
    """Serves every request with an empty JSON object, and appends its path to `events`; yields the URL."""

    async def handle(request):
        await request.read()
        events.append(request.path)
        return web.json_response({"success": True})

    async def start():
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = submit(start()).result()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        submit(runner.cleanup()).result()


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


def test_the_trainer_frees_its_memory_before_the_servers_take_theirs(folders, events, submit):
    folder = folders["llama_tied"]
    weights = tiny_models.weights(folder)
    with recording_server(events, submit) as url:
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
