"""Requests to the endpoint: keys, budgets, streams, and the requests that are refused."""

import asyncio
import json
from urllib.parse import urlsplit

import aiohttp
import pytest

from packages.agents.tests.endpoints import TOOL, Fixed, post, say, serve, user

REQUEST = {"messages": [user("add")]}


def test_a_foreign_key_and_that_of_an_ended_episode_are_refused() -> None:
    async def do(base_url, session, server):
        place = urlsplit(base_url)
        root = f"{place.scheme}://{place.netloc}"
        bearer = {"headers": {"Authorization": f"bearer  {session.key}"}}
        assert (await post(f"{root}/v1", REQUEST, **bearer))[0] == 200
        found = [await post(f"{root}/{'x' * 43}/v1", REQUEST), await post(f"{root}/v1", REQUEST)]
        await server.remove(session)
        found += [await post(base_url, REQUEST), await post(f"{root}/v1", REQUEST, **bearer)]
        assert [(status, body["error"]["code"]) for status, body in found] == [(401, "invalid_api_key")] * 4
        assert len(session.tree.turns) == 1

    serve(do)


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"messages": []}', b'{"messages": [1]}']
    + [
        json.dumps({"messages": messages}).encode()
        for messages in (
            [{"role": "root", "content": "x"}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}],
        )
    ]
    + [
        json.dumps(REQUEST | option).encode()
        for option in (
            {"n": 2},
            {"tool_choice": "required"},
            {"response_format": {"type": "grammar"}},
            {"logprobs": True},
            {"max_tokens": 0},
            {"stop": [""]},
            {"tools": [{"type": "function"}]},
            {"chat_template_kwargs": {"enable_thinking": False}},
        )
    ],
)
def test_a_body_that_is_malformed_or_asks_for_more_is_refused_and_leaves_nothing(body) -> None:
    async def do(base_url, session, server):
        async with aiohttp.ClientSession() as client, client.post(f"{base_url}/chat/completions", data=body) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["message"]
        assert session.tree.turns == []
        assert session.num_turns == 0

    serve(do)


def test_requests_at_once_do_not_exceed_the_number_of_branches() -> None:
    async def do(base_url, session, server):
        answers = await asyncio.gather(*(post(base_url, REQUEST) for _ in range(4)))
        assert sorted(status for status, _ in answers) == [200, 400, 400, 400]
        answer = next(body for status, body in answers if status == 200)["choices"][0]["message"]
        longer = {**REQUEST, "messages": [*REQUEST["messages"], answer, user("b")]}
        answers = await asyncio.gather(*(post(base_url, longer) for _ in range(4)))
        assert [status for status, _ in answers].count(200) == 1
        assert session.tree.num_branches == 1

    serve(do, Fixed(seconds=0.1), max_branches=1)


def test_more_requests_at_once_than_allowed_are_told_to_wait() -> None:
    async def do(base_url, session, server):
        found = await asyncio.gather(*(post(base_url, REQUEST) for _ in range(12)))
        assert sorted(status for status, _ in found) == [200] * 3 + [429] * 9

    serve(do, Fixed(seconds=0.5), max_concurrent=3)


def test_a_client_that_goes_away_cancels_its_turn() -> None:
    sampler = Fixed(seconds=30.0)

    async def do(base_url, session, server):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await post(base_url, REQUEST)
        for _ in range(100):
            if sampler.num_cancelled:
                break
            await asyncio.sleep(0.02)
        assert sampler.num_cancelled == 1
        assert not session.in_progress and session.num_turns == 0
        sampler.seconds = 0.0
        assert [(await post(base_url, REQUEST))[0] for _ in range(2)] == [200, 400], "it is no turn of the two at most"

    serve(do, sampler, max_turns=1)


def test_the_same_request_again_is_a_branch_and_the_branches_are_bounded() -> None:
    async def do(base_url, session, server):
        found = [await post(base_url, REQUEST) for _ in range(3)]
        assert [status for status, _ in found] == [200, 200, 400]
        assert found[2][1]["error"]["code"] == "episode_budget_exceeded"
        assert len(session.tree.trajectories()) == 2

    serve(do, max_branches=2)


def test_a_user_that_imitates_a_tool_does_not_continue_the_tools_conversation() -> None:
    sampler = Fixed()
    tools = {"tools": [{**TOOL}]}

    async def do(base_url, session, server):
        first = await say(base_url, [user("d")], **tools)
        assert first["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
        await say(base_url, [user("d"), {**first, "tool_calls": None}, user("3")], **tools)
        assert session.tree.turns[1].parent is None, "an answer without its call is another answer"
        await say(base_url, [user("d"), first, {"role": "tool", "content": "3"}], **tools)
        assert session.tree.turns[2].parent is session.tree.turns[0]

    sampler.text = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    serve(do, sampler)


def test_a_stream_has_the_answer_the_reason_the_usage_and_an_end() -> None:
    async def do(base_url, session, server):
        body = REQUEST | {"stream": True, "stream_options": {"include_usage": True}}
        async with aiohttp.ClientSession() as client, client.post(f"{base_url}/chat/completions", json=body) as answer:
            events = [line.removeprefix("data: ") for line in (await answer.text()).split("\n\n") if line]
        assert events[-1] == "[DONE]"
        rows = [json.loads(event) for event in events[:-1]]
        assert rows[0]["choices"][0]["delta"] == {"role": "assistant", "content": "sure"}
        assert rows[1]["choices"][0]["finish_reason"] == "stop"
        assert rows[2]["usage"]["completion_tokens"] == 5

    serve(do)
