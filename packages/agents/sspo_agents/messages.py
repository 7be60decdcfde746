"""Messages of a chat, as clients of OpenAI's API send them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sspo_agents.errors import Refusal
from sspo_agents.policy_json import parse_json

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str  # JSON, as a client sees it
    id: str = field(compare=False, default="")

    @property
    def normal(self) -> tuple[str, str]:
        """The call with its arguments in one form of JSON, since clients write the same JSON differently.

        No arguments are those of `{}`, and 1.0 is 1: JavaScript has one kind of numbers.
        """
        try:
            return self.name, json.dumps(_with_integers(parse_json(self.arguments or "{}")), sort_keys=True)
        except ValueError:
            return self.name, self.arguments

    def for_template(self) -> dict[str, Any]:
        """Returns the call as chat templates expect it: arguments that are an object in JSON are that object."""
        try:
            arguments = parse_json(self.arguments or "{}")
        except ValueError:
            arguments = None
        function = {"name": self.name, "arguments": arguments if isinstance(arguments, dict) else self.arguments}
        return {"type": "function", "id": self.id, "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """A message. Clients may send other fields, which are ignored, and leave out some of these."""

    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    answers_call: str = ""  # the id of the call whose result a tool's message is
    name: str = ""

    def repeats(self, known: "Message") -> bool:
        """Returns whether this is `known`, sent again. Many clients leave out the reasoning, and spaces at the ends."""
        return (
            self.role == known.role
            and self.content.strip() == known.content.strip()
            and self.reasoning.strip() in ("", known.reasoning.strip())
            and [call.normal for call in self.calls] == [call.normal for call in known.calls]
        )

    def for_template(self) -> dict[str, Any]:
        """Returns the message as chat templates expect it."""
        optional = {
            "reasoning_content": self.reasoning,
            "tool_calls": [call.for_template() for call in self.calls],
            "tool_call_id": self.answers_call,
            "name": self.name,
        }
        return {"role": self.role, "content": self.content} | {key: value for key, value in optional.items() if value}


def parse_messages(given: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Reads the messages of a request. Raises Refusal if there are none, or one is not text."""
    if not given:
        raise Refusal("messages must be a list of one message or more")
    return [_parse(message, f"messages[{number}]") for number, message in enumerate(given)]


def _parse(message: Mapping[str, Any], place: str) -> Message:
    role = message.get("role")
    if role not in _ROLES:
        raise Refusal(f"{place} must be an object whose role is one of {', '.join(_ROLES)}")
    found = Message(
        role=_ROLES[role],
        content=read_text(message.get("content"), f"{place}.content"),
        reasoning=read_text(message.get("reasoning_content") or message.get("reasoning"), f"{place}.reasoning_content"),
        calls=tuple(map(_call, message.get("tool_calls") or [])),
        answers_call=message.get("tool_call_id") or "",
        name=message.get("name") or "",
    )
    if found.calls and found.role != "assistant":
        raise Refusal(f"{place} calls tools, and only an assistant's message can")
    return found


def _with_integers(value: Any) -> Any:
    """Returns a JSON value in which whole numbers are integers."""
    if isinstance(value, dict):
        return {name: _with_integers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_integers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_text(value: Any, place: str, separator: str = "") -> str:
    """Reads a text, or the parts of one. Raises Refusal if it has images or other parts that are not text."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list) or not all(map(_is_text, value)):
        raise Refusal(f"{place} must be text, or a list of parts of the type text")
    return separator.join(part["text"] for part in value)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _call(call: Mapping[str, Any]) -> Call:
    arguments = call["function"].get("arguments")  # a row's may be an object
    text = json.dumps(arguments) if isinstance(arguments, Mapping) else arguments
    return Call(call["function"]["name"], text or "{}", call.get("id") or "")


def names_of(tools: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the names of the tools."""
    return {tool["function"]["name"] for tool in tools}
