"""OpenAI's chat completions: reads a request, and writes a completion, whole or as a stream."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sspo_agents.chat import ChatRequest, Completion, Form, read_max_tokens, read_stop
from sspo_agents.errors import Refusal
from sspo_agents.forced import RequiredForm, call_of
from sspo_agents.messages import Message, names_of, parse_messages

_UNSUPPORTED = ("logit_bias", "logprobs", "top_logprobs", "functions", "audio", "prediction", "chat_template_kwargs")


def parse_request(content: Mapping[str, Any]) -> ChatRequest:
    """Reads the body of a request. See `Form`."""
    if content.get("n") not in (None, 1):
        raise Refusal("n must be 1: send several requests")
    for name in _UNSUPPORTED:
        if content.get(name):
            raise Refusal(f"{name} is not supported")
    tools = list(content.get("tools") or [])
    names_of(tools)  # each has one
    return ChatRequest(
        messages=parse_messages(content.get("messages") or []),
        tools=tools,
        model=content.get("model") or "policy",
        max_tokens=read_max_tokens(
            content.get("max_tokens" if content.get("max_completion_tokens") is None else "max_completion_tokens")
        ),
        stop=read_stop(content.get("stop"), "stop"),
        parse_calls=bool(tools) and content.get("tool_choice") != "none",
        required_form=_required_form(content, tools),
        stream=content.get("stream") is True,
        stream_usage=(content.get("stream_options") or {}).get("include_usage") is True,
    )


def _required_form(content: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> RequiredForm | None:
    """Reads `tool_choice` and `response_format`. Raises Refusal if they are unknown, or exclude each other."""
    choice = content.get("tool_choice") or "auto"
    form: Mapping[str, Any] = content.get("response_format") or {"type": "text"}
    if form["type"] not in ("text", "json_object", "json_schema"):
        raise Refusal("response_format must be text, json_object or json_schema")
    if choice not in ("auto", "none"):
        if form["type"] != "text":
            raise Refusal("tool_choice and response_format exclude each other")
        return call_of(tools, None if choice == "required" else choice["function"]["name"])
    if form["type"] == "text":
        return None
    return RequiredForm({"type": "object"} if form["type"] == "json_object" else form["json_schema"]["schema"])


def to_json(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """Returns the body of a response that is sent at once."""
    choice = {
        "index": 0,
        "message": _message(completion.message),
        "finish_reason": _reason(completion),
        "logprobs": None,
    }
    return _head("chat.completion", request) | {"choices": [choice], "usage": _usage(completion)}


def to_events(request: ChatRequest, completion: Completion) -> Iterator[bytes]:
    """Yields the events of a stream. The answer is one event, because it is parsed as a whole."""
    head = _head("chat.completion.chunk", request)

    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        return f"data: {json.dumps(head | {'choices': choices} | more)}\n\n".encode()

    delta = _message(completion.message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(delta["tool_calls"])]
    yield event([{"index": 0, "delta": delta, "finish_reason": None}])
    yield event([{"index": 0, "delta": {}, "finish_reason": _reason(completion)}])
    if request.stream_usage:
        yield event([], usage=_usage(completion))
    yield b"data: [DONE]\n\n"


def error_json(error: Refusal) -> dict[str, Any]:
    """Returns the body of an error, as OpenAI's clients read it."""
    return {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code}}


def _head(kind: str, request: ChatRequest) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": request.model}


def _message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": "assistant",
        "content": message.content if not message.calls else message.content or None,
    }
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return found


def _reason(completion: Completion) -> str:
    if completion.finish_reason == "length":
        return "length"
    return "tool_calls" if completion.message.calls else "stop"


def _usage(completion: Completion) -> dict[str, int]:
    prompt, sampled = completion.prompt_tokens, completion.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


FORM = Form("/chat/completions", parse_request, to_json, to_events, error_json)
