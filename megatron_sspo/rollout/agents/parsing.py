"""Reads reasoning and calls of tools from the text of an answer, in the format of Qwen and Hermes."""

import json
import re
import uuid
from collections.abc import Collection

from megatron_sspo.files.strict_json import parse_strict_json
from megatron_sspo.rollout.agents.messages import Call, Message, is_encodable

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_CALL_END = "</tool_call>"
_NAME, _ARGUMENTS, _REASONING_END = "name", ("arguments", "parameters"), "</think>"  # Llama's calls have parameters


def parse_answer(text: str, tools: Collection[str]) -> Message:
    """Returns the message of an answer.

    The text before `</think>` is the reasoning. `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` is a
    call; one that is malformed or names no tool stays in the content.

    Args:
        tools: the names of the tools that may be called.
    """
    reasoning, ended, content = text.rpartition(_REASONING_END)
    calls: list[Call] = []

    def take(found: "re.Match[str]") -> str:
        call = parse_call(found[1], tools)
        if call is None:
            return found[0]
        calls.append(call)
        return ""

    if tools:
        closed, end, rest = content.rpartition(_CALL_END)  # to look for the end of each unclosed call takes too long
        content = _CALL.sub(take, closed + end) + rest
    return Message(
        role="assistant",
        content=content.strip() if calls or ended else content,
        reasoning=reasoning.strip().removeprefix("<think>").strip(),
        calls=tuple(calls),
    )


def parse_call(text: str, tools: Collection[str]) -> Call | None:
    """Reads {"name": ..., "arguments": {...}}; None if it is malformed, names no tool, or no client could send it."""
    try:
        found = parse_strict_json(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get(_NAME), str) or found[_NAME] not in tools:
        return None
    arguments = next((found[name] for name in _ARGUMENTS if name in found), {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Call(found[_NAME], text, new_call_id()) if is_encodable(text) else None


def new_call_id() -> str:
    """Returns an id for a call."""
    return f"call_{uuid.uuid4().hex[:24]}"
