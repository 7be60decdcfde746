"""Messages of a chat, as clients of OpenAI's API send them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron_sspo.data.template import for_template
from megatron_sspo.files.strict_json import parse_strict_json

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class Refusal(Exception):
    """A request that is not answered.

    Attributes:
        status: the status of the HTTP response. Clients send a request again after 408, 409, 429 and 5xx alone.
        code: the reason for programs.
    """

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


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
            return self.name, json.dumps(_with_integers(parse_strict_json(self.arguments or "{}")), sort_keys=True)
        except ValueError:
            return self.name, self.arguments


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
        """Returns the message as chat templates expect it: arguments of calls are objects."""
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.calls:
            found["tool_calls"] = [
                {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        if self.answers_call:
            found["tool_call_id"] = self.answers_call
        if self.name:
            found["name"] = self.name
        return for_template(found)


def parse_messages(given: Any) -> list[Message]:
    """Reads the messages of a request. Raises Refusal if they are malformed or not text."""
    if not isinstance(given, list) or not given:
        raise Refusal("messages must be a list of one message or more")
    return [_parse(message, f"messages[{number}]") for number, message in enumerate(given)]


def _parse(message: Any, place: str) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise Refusal(f"{place} must be an object whose role is one of {', '.join(_ROLES)}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Refusal(f"{place}.tool_calls must be a list")
    found = Message(
        role=_ROLES[role],
        content=read_text(message.get("content"), f"{place}.content"),
        reasoning=read_text(message.get("reasoning_content") or message.get("reasoning"), f"{place}.reasoning_content"),
        calls=tuple(_call(call, f"{place}.tool_calls[{number}]") for number, call in enumerate(calls)),
        answers_call=read_text(message.get("tool_call_id"), f"{place}.tool_call_id"),
        name=read_text(message.get("name"), f"{place}.name"),
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


def read_text(value: Any, place: str) -> str:
    """Reads a text, or the parts of one. Raises Refusal if it has images or other parts that are not text."""
    if value is None:
        return ""
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(map(_is_text, parts)):
        raise Refusal(f"{place} must be text, or a list of parts of the type text")
    return check_text("".join(part["text"] for part in parts), place)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _call(call: Any, place: str) -> Call:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Refusal(f"{place} must have a function with a name")
    given = function.get("arguments")  # a row's may be an object
    text = json.dumps(given) if isinstance(given, Mapping) else given
    arguments = read_text(text, f"{place}.function.arguments")
    return Call(check_text(function["name"], place), arguments or "{}", read_text(call.get("id"), f"{place}.id"))


def is_encodable(text: str) -> bool:
    """Returns whether a text has no halves of surrogate pairs, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(text: str, place: str) -> str:
    """Returns a text that can be encoded. Raises Refusal for another."""
    if not is_encodable(text):
        raise Refusal(f"{place} has half of a surrogate pair, which is no character")
    return text


def parse_tools(given: Any) -> list[dict[str, Any]]:
    """Reads the tools of a request. Raises Refusal if they are malformed."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise Refusal("tools must be a list")
    for number, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refusal(f"tools[{number}] must have the type function, and a function with a name")
    check_text(json.dumps(given, ensure_ascii=False), "tools")
    return given


def names_of(tools: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the names of the tools."""
    return {tool["function"]["name"] for tool in tools}
