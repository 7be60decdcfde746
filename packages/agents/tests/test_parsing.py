"""Answers of the policy, and messages that clients send again."""

import json

import pytest

from packages.agents.tests.endpoints import user
from sspo_agents.chat_completions import parse_request
from sspo_agents.messages import parse_messages
from sspo_agents.parsing import find_calls, split_reasoning

REQUEST = {"messages": [user("add")]}


@pytest.mark.parametrize("text", ["so</think> 3 ", "<think>so</think>3"])
def test_reasoning_is_what_comes_before_its_end(text) -> None:
    assert split_reasoning(text) == ("3", "so")
    assert split_reasoning(" 3 ") == (" 3 ", "")


@pytest.mark.parametrize(
    "call",
    ["{}", '{"name": "rm"}', r'{"name": "add", "arguments": {"a": "\ud83d"}}', '{"name": "add", "arguments": NaN}'],
)
def test_answers_that_are_no_calls_stay_text(call) -> None:
    text = f"<tool_call>{call}</tool_call>"
    assert find_calls(text, {"add"}) == (text, [])


@pytest.mark.parametrize("arguments", ["arguments", "parameters"])  # the latter is Llama's; SGLang's parsers read both
def test_the_arguments_of_a_call(arguments) -> None:
    text = f'so <tool_call>{{"name": "add", "{arguments}": {{"a": 1}}}}</tool_call>'
    content, (call,) = find_calls(text, {"add"})
    assert (content, call.name, call.arguments) == ("so", "add", '{"a": 1}')


def test_a_message_that_is_sent_again_is_recognized() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
    again = {"id": "2", "type": "function", "function": {"name": "add", "arguments": '{"b": 2, "a": 1}'}}
    (known,) = parse_messages([{"role": "assistant", "content": None, "reasoning_content": "so", "tool_calls": [call]}])

    def with_arguments(text):
        return {"content": "", "tool_calls": [{**again, "function": {"name": "add", "arguments": text}}]}

    for sent, same in (
        ({"content": "", "tool_calls": [again]}, True),
        ({"content": "", "tool_calls": [again], "reasoning_content": "so "}, True),
        ({"content": "", "tool_calls": [again], "reasoning_content": "no"}, False),
        (with_arguments('{"a":1.0,"b":2}'), True),
        (with_arguments('{"a":1.5,"b":2}'), False),
        (with_arguments("[" * 100_000), False),
        ({"content": "", "tool_calls": [again, call]}, False),
        ({"content": "x", "tool_calls": [call]}, False),
    ):
        (message,) = parse_messages([{"role": "assistant", **sent}])
        assert message.repeats(known) is same
        assert json.dumps(message.for_template())


def test_a_limit_of_tokens_that_is_null_leaves_the_other_one() -> None:
    assert parse_request({**REQUEST, "max_completion_tokens": None, "max_tokens": 5}).max_tokens == 5
    assert parse_request({**REQUEST, "max_completion_tokens": 4, "max_tokens": 5}).max_tokens == 4
