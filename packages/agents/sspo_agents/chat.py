"""A request for the policy's next turn, its answer, and the forms of the APIs that clients use."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sspo_agents.errors import Refusal
from sspo_agents.forced import RequiredForm
from sspo_agents.messages import Message


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a completion. Temperature, top-p and other parameters of sampling are the run's."""

    messages: list[Message]
    tools: list[dict[str, Any]]  # in OpenAI's form, which chat templates expect
    model: str
    max_tokens: int | None  # None: as many as there is room for
    stop: tuple[str, ...]
    parse_calls: bool
    required_form: RequiredForm | None
    stream: bool
    stream_usage: bool

    @property
    def tools_key(self) -> str:
        """The tools as text, by which conversations with the same tools are recognized."""
        return json.dumps(self.tools, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Completion:
    """The policy's answer, with the numbers of tokens."""

    message: Message
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    stop: str = ""  # the client's stop string that ended the answer


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the requests and responses of one API."""

    path: str
    parse_request: Callable[[Any], ChatRequest]
    """Reads the body of a request. Raises Refusal if it asks for something that is not offered."""
    to_json: Callable[[ChatRequest, Completion], dict[str, Any]]
    """Returns the body of a response that is sent at once."""
    to_events: Callable[[ChatRequest, Completion], Iterator[bytes]]
    """Yields the events of a stream. The answer is in one piece, because it is parsed as a whole."""
    error_json: Callable[[Refusal], dict[str, Any]]
    """Returns the body of an error."""


def read_max_tokens(given: Any) -> int | None:
    """Reads the largest number of tokens of an answer. Raises Refusal if it is not a whole number of 1 or more."""
    if given is not None and (type(given) is not int or given < 1):
        raise Refusal("max_tokens must be a whole number of 1 or more")
    return given


def read_stop(given: Any, name: str) -> tuple[str, ...]:
    """Reads the strings that end an answer. Raises Refusal if they are malformed."""
    found = [given] if isinstance(given, str) else given or []
    if not isinstance(found, list) or not all(isinstance(text, str) and text for text in found):
        raise Refusal(f"{name} must be texts of one character or more")
    return tuple(found)
