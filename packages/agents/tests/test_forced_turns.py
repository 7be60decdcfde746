"""Answers whose form a request prescribes: refused, or sampled under a grammar and only observed."""

import json

import pytest

from packages.agents.tests.endpoints import Fixed, post, say, serve, user
from sspo_agents import anthropic_messages, chat_completions
from sspo_agents.errors import Refusal
from sspo_agents.forced import call_of

ADD = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/number"}},
        "$defs": {"number": {"type": "number"}},
    },
}
STOP = {"name": "stop"}
TOOLS = [{"type": "function", "function": function} for function in (ADD, STOP)]
ANTHROPIC_TOOLS = [
    {"name": function["name"], "input_schema": function.get("parameters", {})} for function in (ADD, STOP)
]
CALL_OF_ADD = {
    "type": "object",
    "properties": {
        "name": {"const": "add"},
        "arguments": {"type": "object", "properties": {"a": {"$ref": "#/$defs/number"}}},
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
DEFINITIONS = {"$defs": {"number": {"type": "number"}}}
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}}


def form_of(parse, **content):
    found = parse.parse_request({"messages": [user("a")], "max_tokens": 9, **content}).required_form
    return (found.schema, found.is_call) if found else None


@pytest.mark.parametrize(
    ("content", "schema", "is_call"),
    [
        ({"response_format": {"type": "json_object"}}, {"type": "object"}, False),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, SCHEMA, False),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}},
            {"anyOf": [CALL_OF_ADD], **DEFINITIONS},
            True,
        ),
    ],
)
def test_openais_forms(content, schema, is_call) -> None:
    assert form_of(chat_completions, **content) == (schema, is_call)


@pytest.mark.parametrize(
    ("content", "schema", "is_call"),
    [
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, SCHEMA, False),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, SCHEMA, False),
        (
            {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "add"}},
            {"anyOf": [CALL_OF_ADD], **DEFINITIONS},
            True,
        ),
    ],
)
def test_anthropics_forms(content, schema, is_call) -> None:
    assert form_of(anthropic_messages, **content) == (schema, is_call)


def test_a_call_of_any_tool() -> None:
    for found in (
        form_of(chat_completions, tools=TOOLS, tool_choice="required"),
        form_of(anthropic_messages, tools=ANTHROPIC_TOOLS, tool_choice={"type": "any"}),
    ):
        assert found is not None
        schema, is_call = found
        assert is_call
        assert [call["properties"]["name"]["const"] for call in schema["anyOf"]] == ["add", "stop"]
        assert schema["$defs"] == DEFINITIONS["$defs"]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"tools": TOOLS, "tool_choice": "none"},
        {"response_format": {"type": "text"}},
    ],
)
def test_other_requests_prescribe_no_form(content) -> None:
    assert form_of(chat_completions, **content) is None


def test_equal_definitions_of_two_tools_are_one_and_different_ones_are_refused() -> None:
    other = {"type": "function", "function": {**ADD, "name": "subtract"}}
    assert call_of([*TOOLS, other]).schema["$defs"] == DEFINITIONS["$defs"]
    contradicting = {"$defs": {"number": {"type": "string"}}}
    with pytest.raises(Refusal, match="number"):
        call_of([*TOOLS, {"type": "function", "function": {"name": "b", "parameters": contradicting}}])


def test_they_are_refused_unless_the_run_allows_them() -> None:
    async def do(base_url, session, server):
        status, body = await post(base_url, {"messages": [user("a")], "response_format": {"type": "json_object"}})
        assert (status, body["error"]["code"]) == (400, "constrained_decoding")
        assert "forced_turns='observe'" in body["error"]["message"]
        assert not session.tree.turns

    serve(do)


def test_an_engine_without_grammars_refuses_them() -> None:
    class Free(Fixed):
        takes_schemas = False

    async def do(base_url, session, server):
        status, body = await post(base_url, {"messages": [user("a")], "response_format": {"type": "json_object"}})
        assert (status, body["error"]["code"]) == (400, "constrained_decoding")

    serve(do, Free(), forced_turns="observe")


def test_the_sampler_gets_the_schema_and_the_call_is_parsed() -> None:
    sampler = Fixed("name")

    async def do(base_url, session, server):
        await say(base_url, [user("a")])
        answer = await say(base_url, [user("a")], response_format={"type": "json_object"})
        assert answer["content"] == "name"
        assert [json.loads(schema or "0") for _, _, schema in sampler.asked] == [0, {"type": "object"}]
        assert [turn.is_forced for turn in session.tree.turns] == [False, True]

    serve(do, sampler, forced_turns="observe")
    form = call_of(TOOLS, "add")
    (call,) = form.message('{"name": "add", "arguments": {"a": 1}}', TOOLS).calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1})
    cut = form.message('{"name": "add", "argum', TOOLS)
    assert (cut.content, cut.calls) == ('{"name": "add", "argum', ())
