"""Reads reasoning and calls of tools from the text of an answer, in the format of Qwen and Hermes."""

import json
import re
import uuid
from collections.abc import Collection

from sspo_agents.messages import Call
from sspo_agents.policy_json import parse_json

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_CALL_END = "</tool_call>"
_NAME, _ARGUMENTS, _REASONING_END = "name", ("arguments", "parameters"), "</think>"  # Llama's calls have parameters


def split_reasoning(text: str) -> tuple[str, str]:
    """Returns the content of an answer, and the reasoning, which is the text before `</think>`."""
    reasoning, ended, content = text.rpartition(_REASONING_END)
    return content.strip() if ended else content, reasoning.strip().removeprefix("<think>").strip()


def find_calls(text: str, tools: Collection[str]) -> tuple[str, list[Call]]:
    """Returns the content of a text, and its calls of tools, whose names are given.

    `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` is a call; one that is malformed or names no tool stays
    in the content.
    """
    calls: list[Call] = []

    def take(found: "re.Match[str]") -> str:
        call = parse_call(found[1], tools)
        if call is None:
            return found[0]
        calls.append(call)
        return ""

    closed, end, rest = text.rpartition(_CALL_END)  # to look for the end of each unclosed call takes too long
    content = _CALL.sub(take, closed + end) + rest
    return content.strip() if calls else content, calls


def parse_call(text: str, tools: Collection[str]) -> Call | None:
    """Reads {"name": ..., "arguments": {...}}; None if it is malformed, names no tool, or no client could send it."""
    try:
        found = parse_json(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get(_NAME), str) or found[_NAME] not in tools:
        return None
    arguments = next((found[name] for name in _ARGUMENTS if name in found), {})
    return new_call(
        found[_NAME], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )


def new_call(name: str, arguments: str) -> Call:
    """Returns a call with an id of its own."""
    return Call(name, arguments, f"call_{uuid.uuid4().hex[:24]}")
