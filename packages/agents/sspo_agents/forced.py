"""Answers whose form a request prescribes: JSON of a schema, or a call of a tool."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sspo_agents.errors import Refusal
from sspo_agents.messages import Message, names_of
from sspo_agents.parsing import parse_call

_DEFINITIONS = ("$defs", "definitions")  # where the references of a schema point to, from its root


@dataclass(frozen=True, slots=True)
class RequiredForm:
    """The form that an answer must have. The engine samples it under a grammar, so that it is not learned from."""

    schema: Mapping[str, Any]  # JSON schema of the whole answer
    is_call: bool = False  # whether it is {"name": ..., "arguments": {...}}

    @property
    def json_schema(self) -> str:
        """The schema as text, as engines take it. An answer has the properties in the order of the schema."""
        return json.dumps(self.schema, ensure_ascii=False)

    def message(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Message:
        """Returns the message of an answer. A call that is incomplete is content."""
        call = parse_call(text, names_of(tools)) if self.is_call else None
        return Message("assistant", text) if call is None else Message("assistant", calls=(call,))


def call_of(tools: Sequence[Mapping[str, Any]], name: Any = None) -> RequiredForm:
    """Returns the form of a call of one of the tools.

    Args:
        tools: the tools, in OpenAI's form.
        name: the tool that must be called; None: any.

    Raises:
        Refusal: there is no such tool, or their schemas contradict each other.
    """
    functions = [tool["function"] for tool in tools if name is None or tool["function"]["name"] == name]
    if not functions:
        raise Refusal("tool_choice names no tool of the request")
    calls: list[dict[str, Any]] = []
    definitions: dict[str, dict[str, Any]] = {key: {} for key in _DEFINITIONS}
    for function in functions:
        arguments: dict[str, Any] = dict(function.get("parameters") or {"type": "object"})
        for key, known in definitions.items():
            for label, schema in (arguments.pop(key, None) or {}).items():
                if known.setdefault(label, schema) != schema:
                    raise Refusal(f"two tools define different schemas under the name {label!r}")
        properties = {"name": {"const": function["name"]}, "arguments": arguments}
        calls.append(
            {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        )
    return RequiredForm({"anyOf": calls} | {key: found for key, found in definitions.items() if found}, is_call=True)
