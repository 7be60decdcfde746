"""Anthropic's messages: reads a request, and writes a message, whole or as a stream."""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from sspo_agents.chat import ChatRequest, Completion, Form, read_max_tokens, read_stop
from sspo_agents.errors import Refusal
from sspo_agents.forced import RequiredForm, call_of
from sspo_agents.messages import Call, Message, read_text
from sspo_agents.policy_json import parse_json

_INVALID = "INVALID_JSON"  # the key under which Anthropic's clients wrap arguments that are no JSON object
_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}


def parse_request(content: Mapping[str, Any]) -> ChatRequest:
    """Reads the body of a request. See `Form`."""
    for name in ("mcp_servers", "container", "context_management"):
        if content.get(name):
            raise Refusal(f"{name} is not supported")
    choice, output = content.get("tool_choice") or {"type": "auto"}, content.get("output_config") or {}
    tools = [_tool(tool) for tool in content.get("tools") or []]
    return ChatRequest(
        messages=_messages(content.get("system"), content["messages"]),
        tools=tools,
        model=content.get("model") or "policy",
        max_tokens=read_max_tokens(content.get("max_tokens")),
        stop=read_stop(content.get("stop_sequences"), "stop_sequences"),
        parse_calls=bool(tools) and choice["type"] != "none",
        required_form=_required_form(choice, content.get("output_format") or output.get("format"), tools),
        stream=content.get("stream") is True,
        stream_usage=True,
    )


def _required_form(choice: Mapping[str, Any], form: Any, tools: list[dict[str, Any]]) -> RequiredForm | None:
    """Reads the choice of a tool and the output's form. Raises Refusal if they are unknown, or exclude each other."""
    kind = choice["type"]
    if kind not in ("auto", "none", "any", "tool"):
        raise Refusal("tool_choice must have the type auto, none, any or tool")
    forced = kind in ("any", "tool")
    if form is None:
        return call_of(tools, choice["name"] if kind == "tool" else None) if forced else None
    if forced:
        raise Refusal("tool_choice and the format of the output exclude each other")
    if form["type"] != "json_schema":
        raise Refusal("the format of the output must have the type json_schema")
    return RequiredForm(form["schema"])


def to_json(request: ChatRequest, completion: Completion) -> dict[str, Any]:
    """Returns the body of a response that is sent at once."""
    return _head(request, completion, _blocks(completion.message)) | _end(completion)


def to_events(request: ChatRequest, completion: Completion) -> Iterator[bytes]:
    """Yields the events of a stream. Each block is one event, because the answer is parsed as a whole."""

    def event(kind: str, **more: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind} | more)}\n\n".encode()

    yield event("message_start", message=_head(request, completion, []))
    for index, block in enumerate(_blocks(completion.message)):
        empty, deltas = _pieces(block)
        yield event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    yield event("message_delta", delta=_end(completion), usage=_usage(completion))
    yield event("message_stop")


def error_json(error: Refusal) -> dict[str, Any]:
    """Returns the body of an error, as Anthropic's clients read it."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error), "code": error.code}}


def _messages(system: Any, given: list[Any]) -> list[Message]:
    found = [Message("system", text)] if (text := read_text(system, "system", "\n")) else []
    for number, message in enumerate(given):
        place, content = f"messages[{number}]", message.get("content")
        if message["role"] not in ("user", "assistant"):
            raise Refusal(f"{place} must be an object whose role is user or assistant")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += [_answer(blocks, place)] if message["role"] == "assistant" else _questions(blocks, place)
    if not found or found[-1].role == "assistant":
        raise Refusal("the last message must be the user's: an answer cannot be begun for the policy")
    return found


def _questions(blocks: list[dict[str, Any]], place: str) -> list[Message]:
    """Returns the messages of a user's message: each result of a tool is one, and so is the text between two."""
    found: list[Message] = []
    for number, block in enumerate(blocks):
        where = f"{place}.content[{number}]"
        if block.get("type") == "tool_result":
            text = read_text(block.get("content"), f"{where}.content", "\n")
            found.append(Message("tool", text, answers_call=block.get("tool_use_id") or ""))
        else:
            text = read_text([block], where)
            if found and found[-1].role == "user":
                text = f"{found.pop().content}\n{text}"
            found.append(Message("user", text))
    return found


def _answer(blocks: list[dict[str, Any]], place: str) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[Call] = []
    for number, block in enumerate(blocks):
        if block.get("type") == "thinking":
            reasoning.append(block.get("thinking") or "")
        elif block.get("type") == "tool_use":
            calls.append(_call(block))
        else:
            texts.append(read_text([block], f"{place}.content[{number}]"))
    return Message("assistant", "\n".join(texts), "\n".join(reasoning), tuple(calls))


def _call(block: dict[str, Any]) -> Call:
    given = block.get("input", {})
    is_wrapped = list(given) == [_INVALID] and isinstance(given[_INVALID], str)
    arguments = given[_INVALID] if is_wrapped else json.dumps(given, ensure_ascii=False)
    return Call(block["name"], arguments, block.get("id") or "")


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tool in OpenAI's form."""
    if tool.get("type") not in (None, "custom"):
        raise Refusal("tools must have the type custom: tools of a server are not supported")
    function = {"name": tool["name"]} | ({"description": tool["description"]} if tool.get("description") else {})
    return {"type": "function", "function": function | {"parameters": tool.get("input_schema") or {}}}


def _head(request: ChatRequest, completion: Completion, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": blocks,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(completion),
    }


def _blocks(message: Message) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if message.reasoning:
        found.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
    if message.content:
        found.append({"type": "text", "text": message.content})
    found += [{"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)} for call in message.calls]
    return found


def _input(call: Call) -> dict[str, Any]:
    try:
        found = parse_json(call.arguments)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {_INVALID: call.arguments}


def _pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns a block as a stream begins it, and the deltas that fill it."""
    if block["type"] == "thinking":
        deltas = [{"type": f"{name}_delta", name: block[name]} for name in ("thinking", "signature")]
        return block | {"thinking": ""}, deltas
    if block["type"] == "text":
        return block | {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
    return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _end(completion: Completion) -> dict[str, Any]:
    if completion.finish_reason == "length":
        reason = "max_tokens"
    elif completion.message.calls:
        reason = "tool_use"
    else:
        reason = "stop_sequence" if completion.stop else "end_turn"
    return {"stop_reason": reason, "stop_sequence": completion.stop if reason == "stop_sequence" else None}


def _usage(completion: Completion) -> dict[str, int]:
    return {"input_tokens": completion.prompt_tokens, "output_tokens": completion.completion_tokens}


FORM = Form("/messages", parse_request, to_json, to_events, error_json)
