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


OPENAI, ANTHROPIC = chat_completions, anthropic_messages
FORM_OF_ADD = ({"anyOf": [CALL_OF_ADD], **DEFINITIONS}, True)


@pytest.mark.parametrize(
    ("api", "content", "form"),
    [
        (OPENAI, {"response_format": {"type": "json_object"}}, ({"type": "object"}, False)),
        (OPENAI, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, (SCHEMA, False)),
        (OPENAI, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}}, FORM_OF_ADD),
        (OPENAI, {"tools": TOOLS, "tool_choice": "auto"}, None),
        (OPENAI, {"response_format": {"type": "text"}}, None),
        (ANTHROPIC, {"output_format": {"type": "json_schema", "schema": SCHEMA}}, (SCHEMA, False)),
        (ANTHROPIC, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, (SCHEMA, False)),
        (ANTHROPIC, {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "add"}}, FORM_OF_ADD),
    ],
)
def test_forms_that_requests_prescribe(api, content, form) -> None:
    assert form_of(api, **content) == form


@pytest.mark.parametrize(("takes_schemas", "forced_turns"), [(True, "refuse"), (False, "observe")])
def test_they_need_the_runs_leave_and_an_engine_with_grammars(takes_schemas, forced_turns) -> None:
    sampler = Fixed()
    sampler.takes_schemas = takes_schemas

    async def do(base_url, session, server):
        status, body = await post(base_url, {"messages": [user("a")], "response_format": {"type": "json_object"}})
        assert (status, body["error"]["code"]) == (400, "constrained_decoding")
        assert not session.tree.turns

    serve(do, sampler, forced_turns=forced_turns)


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


def test_equal_definitions_of_two_tools_are_one_and_different_ones_are_refused() -> None:
    other = {"type": "function", "function": {**ADD, "name": "subtract"}}
    assert call_of([*TOOLS, other]).schema["$defs"] == DEFINITIONS["$defs"]
    contradicting = {"$defs": {"number": {"type": "string"}}}
    with pytest.raises(Refusal, match="number"):
        call_of([*TOOLS, {"type": "function", "function": {"name": "b", "parameters": contradicting}}])


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
