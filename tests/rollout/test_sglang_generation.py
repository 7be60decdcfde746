"""The generation of a response, as far as it can be tested without SGLang."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.requests import generation as sglang_generation
from megatron_sspo.rollout.requests.format import PartialResponse
from megatron_sspo.rollout.requests.generation import Requests
from megatron_sspo.rollout.requests.sampler import ServedSampler
from megatron_sspo.rollout.servers.client import Client, RequestRejected
from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.rollout.servers.pool import Server, ServerPool
from megatron_sspo.types import Prompt, Sampling

FIRST = Prompt(id="first", tokens=(1,), answer="")
OPTIONS = Options(max_in_flight=1, request_seconds=0.05)


def test_a_healthy_server_that_never_answers_ends_the_run(monkeypatch):
    """Covers a server that neither answers in time nor returns an aborted response."""
    monkeypatch.setattr(sglang_generation, "_ABORT_SECONDS", 0.1)
    monkeypatch.setattr(sglang_generation, "_FIRST_PAUSE", 0.001)
    asked = []

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split()[1].decode())
        if asked[-1] == "/generate":
            await reader.read()  # until the client closes the connection
        else:
            writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def respond():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "")
        healthy = Server(client, is_up=True, version=0)
        pool = ServerPool([healthy], key="", min_servers=1, max_restarts=0, health_seconds=5.0)
        pool.version = 0
        format = SimpleNamespace(to_request=lambda *_, id, schema: {"rid": id})
        try:
            await Requests(pool, format, None, OPTIONS).run_turn(FIRST, Sampling(), 0)
        finally:
            await client.close()
            server.close()

    with pytest.raises(
        UserError, match=r"no server answers prompt first; the last failure: .*/generate did not answer"
    ):
        asyncio.run(respond())
    assert asked.count("/generate") == sglang_generation._MAX_FAILURES
    assert "/abort_request" in asked and "/health_generate" in asked


class _SlowServer:
    """A stand-in for a healthy server that returns each request without its end, after the time limit of 0.05 s."""

    url = "http://a"

    def __init__(self) -> None:
        self.num_asked = 0

    async def post(self, path, content, *, seconds):
        if path == "/generate":
            self.num_asked += 1
            await asyncio.sleep(0.06)
        return {}

    async def is_healthy(self, seconds):
        return True


def requests_to(client, part: PartialResponse) -> Requests:
    """Makes the requests to one server, each of whose answers is read as `part`."""
    pool = ServerPool(
        [Server(client, is_up=True, version=0)], key="", min_servers=1, max_restarts=0, health_seconds=5.0
    )
    pool.version = 0
    format = SimpleNamespace(
        to_request=lambda *_, id, schema: {"rid": id, "input_ids": [1], "sampling_params": {"max_new_tokens": 4}},
        parse=lambda *_: part,
    )
    return Requests(pool, format, None, OPTIONS)


def test_a_healthy_server_that_samples_nothing_ends_the_run(monkeypatch):
    """Covers a server that returns each request without a token when its time is over: it would go on without end."""
    monkeypatch.setattr(sglang_generation, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sglang_generation, "_MAX_PAUSE", 0.001)
    server = _SlowServer()

    async def respond():
        response = requests_to(server, PartialResponse()).run_turn(FIRST, Sampling(), 0)
        await asyncio.wait_for(response, 10)

    with pytest.raises(
        UserError, match=r"no server answers prompt first; .* sampled no token of any request in 0.05 s"
    ):
        asyncio.run(respond())
    assert server.num_asked == sglang_generation._MAX_FAILURES


def test_a_turn_with_a_schema_that_never_ends_in_time_is_rejected():
    """Covers a server that samples tokens and is slow: the turn begins again each time, and would so without end."""
    server = _SlowServer()
    token = PartialResponse(tokens=np.ones(1, np.int32), log_probs=np.zeros(1, np.float32))

    async def respond():
        await asyncio.wait_for(requests_to(server, token).run_turn(FIRST, Sampling(), 0, schema="{}"), 10)

    with pytest.raises(RequestRejected, match=r"did not end within 0\.05 s in 3 attempts: raise .*request_seconds"):
        asyncio.run(respond())
    assert server.num_asked == 3


@pytest.mark.parametrize(("of_weights", "is_ours"), [(2, False), (3, True), (4, False)])
def test_tokens_of_weights_that_this_run_has_not_sent(monkeypatch, of_weights, is_ours):
    """Covers a server into which another trainer loads its weights: the run would learn from that one's policy."""
    monkeypatch.setattr(sglang_generation, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sglang_generation, "_MAX_PAUSE", 0.001)
    token = PartialResponse(np.ones(1, np.int32), np.zeros(1, np.float32), ((of_weights, 1),), "stop")

    async def respond():
        requests = requests_to(_SlowServer(), token)
        requests.pool.version = requests.pool.servers[0].version = 3
        return await asyncio.wait_for(requests.run_turn(FIRST, Sampling(), 0), 10)

    if is_ours:
        assert asyncio.run(respond()).spans == ((3, 1),)
        return
    with pytest.raises(UserError, match=rf"http://a has answered with weights of version {of_weights}, which this run"):
        asyncio.run(respond())


@pytest.mark.parametrize(("length", "is_refused"), [(1, True), (2, False), (4, False)])
def test_a_response_that_the_server_has_shortened(length, is_refused):
    """Covers a cache for fewer tokens than were asked for; SGLang takes up to two of the model's positions itself."""
    tokens, log_probs = np.ones(length, np.int32), np.zeros(length, np.float32)
    part = PartialResponse(tokens, log_probs, ((0, length),), "length")

    async def respond():
        return await asyncio.wait_for(requests_to(_SlowServer(), part).run_turn(FIRST, Sampling(), 0), 10)

    if not is_refused:
        assert len(asyncio.run(respond()).tokens) == length
        return
    with pytest.raises(UserError, match=r"http://a ended a response .* 1, and 4 were asked for.*max_total_tokens"):
        asyncio.run(respond())


def test_calls_of_a_servers_parser():
    async def ask(path, *_):
        return answer

    requests = SimpleNamespace(options=Options(tool_call_parser="qwen"), ask=ask, takes_schemas=False)
    sampler = ServedSampler(requests, "first", Sampling(), 0)
    answer = {"calls": [{"name": "f", "parameters": "{}"}], "normal_text": "so"}
    assert asyncio.run(sampler.find_calls("x", [])) == ("so", [("f", "{}")])
    answer["calls"][0]["parameters"] = "\ud800"
    assert asyncio.run(sampler.find_calls("x", [])) == ("x", []), "no client could send such a call again"
    assert asyncio.run(sampler.split_reasoning("x")) is None
