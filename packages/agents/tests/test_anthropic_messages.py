"""Anthropic's messages: the same conversations, tokens, branches and budgets as in OpenAI's form."""

import json
from urllib.parse import urlsplit

import aiohttp
import pytest

from packages.agents.tests.endpoints import Fixed, say, serve, tokenizer, user
from sspo_agents import chat_completions
from sspo_agents.anthropic_messages import parse_request

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "add", "description": "adds", "input_schema": SCHEMA}
OPENAI_TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}
CALL = '<think>so</think>ok<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
BODY = {"model": "any", "max_tokens": 50, "messages": [user("a")]}


async def post(url, content, **options):
    async with aiohttp.ClientSession() as client, client.post(url, json=content, **options) as answer:
        return answer.status, await answer.text()


async def ask(base_url, messages, **options):
    """Returns a message, which must be an answer."""
    status, text = await post(f"{base_url}/messages", BODY | {"messages": messages} | options)
    assert status == 200, text
    return json.loads(text)


def assembled(text):
    """Puts a stream together, as Anthropic's clients do."""
    kinds, blocks, message, texts = [], [], {}, {}
    for event in filter(None, text.split("\n\n")):
        kind, data = (line.partition(": ")[2] for line in event.split("\n"))
        row = json.loads(data)
        assert row["type"] == kind
        kinds.append(kind)
        if kind == "message_start":
            message = row["message"]
        elif kind == "content_block_start":
            assert row["index"] == len(blocks)
            blocks.append(row["content_block"])
        elif kind == "content_block_delta":
            (name,) = row["delta"].keys() - {"type"}
            texts[row["index"], name] = texts.get((row["index"], name), "") + row["delta"][name]
        elif kind == "message_delta":
            message |= row["delta"] | {"usage": row["usage"]}
    for (index, name), value in texts.items():
        blocks[index] |= {"input": json.loads(value)} if name == "partial_json" else {name: value}
    return kinds, message | {"content": blocks}


def knowing(text="sure"):
    sampler = Fixed()
    sampler.text = text
    return sampler


def test_a_conversation_is_that_of_openais_form() -> None:
    theirs = {
        "system": [
            {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "t"},
        ],
        "messages": [
            user("a"),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "so", "signature": "x"},
                    {"type": "text", "text": "ok"},
                    {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "2", "name": "add", "input": {"INVALID_JSON": "{{"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "3"},
                    {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": "4"}]},
                    {"type": "text", "text": "b"},
                    {"type": "text", "text": "c"},
                ],
            },
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["x"],
        "max_tokens": 50,
        "temperature": 0.1,
        "metadata": {"user_id": "1"},
    }
    calls = [("1", '{"a": 1}'), ("2", "{{")]
    calls = [{"id": i, "type": "function", "function": {"name": "add", "arguments": text}} for i, text in calls]
    ours = {
        "messages": [
            {"role": "system", "content": "s\nt"},
            user("a"),
            {"role": "assistant", "content": "ok", "reasoning_content": "so", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "content": "3"},
            {"role": "tool", "tool_call_id": "2", "content": "4"},
            user("b\nc"),
        ],
        "tools": [OPENAI_TOOL],
        "stop": "x",
        "max_tokens": 50,
        "stream_options": {"include_usage": True},
    }
    found, expected = parse_request(theirs), chat_completions.parse_request(ours)
    assert found == expected
    assert [message.for_template() for message in found.messages] == [m.for_template() for m in expected.messages]


@pytest.mark.parametrize("in_second", ["anthropic", "openai"])
def test_a_loop_with_a_tool_is_spliced_in_either_form(in_second) -> None:
    sampler = knowing(CALL)

    async def do(base_url, session, server):
        first = await ask(base_url, [user("a")], tools=[TOOL])
        assert first["stop_reason"] == "tool_use"
        assert first["usage"] == {"input_tokens": len(sampler.prompts[0]), "output_tokens": 5}
        thinking, text, call = first["content"]
        assert (thinking["thinking"], text["text"], call["input"]) == ("so", "ok", {"a": 1})
        if in_second == "anthropic":
            result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "3"}]}
            kept = {"role": "assistant", "content": [text, call]}  # many clients leave out the thinking
            await ask(base_url, [user("a"), kept, result], tools=[TOOL])
        else:
            call = {"id": call["id"], "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
            kept = {"role": "assistant", "content": "ok", "tool_calls": [call]}
            result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
            await say(base_url, [user("a"), kept, result], tools=[OPENAI_TOOL])
        first, second = session.tree.turns
        assert second.parent is first
        between = tokenizer().decode(sampler.prompts[1][len(first.tokens) :])
        assert between == "t:3<eos>a:"
        assert len(session.tree.trajectories()) == 1

    serve(do, sampler)


def test_a_stream_is_the_message_that_is_sent_at_once() -> None:
    async def do(base_url, session, server):
        whole = await ask(base_url, [user("a")], tools=[TOOL])
        status, text = await post(f"{base_url}/messages", BODY | {"tools": [TOOL], "stream": True})
        assert status == 200
        kinds, message = assembled(text)
        block = ["content_block_start", "content_block_delta", "content_block_stop"]
        thinking = [block[0], block[1], *block[1:]]
        assert kinds == ["message_start", *thinking, *block, *block, "message_delta", "message_stop"]
        for one in (whole, message):
            one["id"] = one["content"][2]["id"] = ""
        assert message == whole

    serve(do, knowing(CALL))


def test_arguments_that_are_no_object_come_back_as_they_were() -> None:
    async def do(base_url, session, server):
        first = await ask(base_url, [user("a")], tools=[TOOL])
        assert first["content"][0]["input"] == {"INVALID_JSON": "1 and 2"}
        answer = {"role": "assistant", "content": first["content"]}
        await ask(base_url, [user("a"), answer, user("b")], tools=[TOOL])
        assert session.tree.turns[1].parent is session.tree.turns[0]

    serve(do, knowing('<tool_call>{"name": "add", "arguments": "1 and 2"}</tool_call>'))


def test_an_answer_says_why_it_ended() -> None:
    sampler = Fixed()

    async def do(base_url, session, server):
        found = await ask(base_url, [user("a")], stop_sequences=["re", "u"], max_tokens=7)
        assert sampler.asked == [(7, ("re", "u"), "")]
        assert found["content"] == [{"type": "text", "text": "s"}]
        assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "u")
        found = await ask(base_url, [user("a")])
        assert (found["stop_reason"], found["stop_sequence"]) == ("end_turn", None)

    serve(do, sampler)


def test_keys_and_errors_are_as_anthropics_clients_expect() -> None:
    async def do(base_url, session, server):
        place = urlsplit(base_url)
        url = f"{place.scheme}://{place.netloc}/v1/messages"
        found = [await post(url, BODY, headers={"x-api-key": key}) for key in (session.key, "x")]
        found.append(await post(f"{base_url}/messages", {"messages": [user("a" * 500)]}))
        found.append(await post(f"{base_url}/messages", BODY))
        found.append(await post(f"{base_url}/messages", BODY | {"messages": [user("b")]}))
        errors = [json.loads(text).get("error", {}) for _, text in found]
        assert [
            (status, error.get("type"), error.get("code")) for (status, _), error in zip(found, errors, strict=True)
        ] == [
            (200, None, None),
            (401, "authentication_error", "invalid_api_key"),
            (400, "invalid_request_error", "context_length_exceeded"),
            (200, None, None),
            (400, "invalid_request_error", "episode_budget_exceeded"),
        ]
        assert json.loads(found[1][1])["type"] == "error"

    serve(do, max_turns=2)


@pytest.mark.parametrize(
    "option",
    [
        {"messages": [1]},
        {"messages": [user("a"), {"role": "assistant", "content": "The"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tool_choice": {"type": "any"}},
        {"mcp_servers": [{"url": "http://a"}]},
        {"max_tokens": 0},
    ],
)
def test_a_request_that_is_malformed_or_asks_for_more_is_refused(option) -> None:
    async def do(base_url, session, server):
        status, text = await post(f"{base_url}/messages", BODY | option)
        assert (status, json.loads(text)["type"]) == (400, "error")
        assert session.num_turns == 0

    serve(do)
