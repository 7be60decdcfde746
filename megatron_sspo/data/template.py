"""Renders a row as a prompt: the text that the policy continues, and the fields that rewards and agents read."""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from megatron_sspo.config.naming import one_line
from megatron_sspo.data.row import Row
from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import decode_json
from megatron_sspo.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Templates such as Llama's write the date of today, so a run's prompts would change at midnight, and it could not be
# resumed. This is the date that Llama's write where there is no clock. Transformers passes no functions to templates.
_TODAY = datetime(2024, 7, 26)
_CLOCK = "strftime_now"
_FORMATS = ("%Y", "%y", "%m", "%-m", "%d", "%-d", "%e", "%B", "%b", "%A", "%a", "%j", "%F", "%H", "%M", "%S")
_FIXED_CLOCK = (
    f"{{% macro {_CLOCK}(format) %}}{{{{ format"
    + "".join(f"|replace('{part}', '{_TODAY.strftime(part)}')" for part in _FORMATS)
    + " }}{% endmacro %}\n"  # Jinja drops a line break after a block
)
_ANSWER = {"role": "assistant", "content": "EXAMPLE-ANSWER"}
_PREFILL = re.compile(r"<think>\s*(?:</think>\s*)?\Z")

THINK_ANSWER_INSTRUCTION = (
    "First think about the problem step by step, then give the final answer. "
    "Write the reasoning between <think> and </think> and only the final answer between <answer> and </answer>, "
    "like this: <think> reasoning </think> <answer> final answer </answer>"
)
"""System text for recipes that train a chat model on the paper's template (the paper does not print its text)."""

CODEACT_INSTRUCTION = (
    "Solve the task step by step. Begin every message with your reasoning, between <think> and </think>, and end it "
    "in one of two ways. Either run Python code: write it between <execute> and </execute>. It runs in an interpreter "
    "that keeps its variables from one message to the next, and what it prints comes back as an observation. Or give "
    "the solution: write only the final answer, or the program where one is asked for, between <solution> and "
    "</solution>. Like this: <think> reasoning </think> <execute> print(6 * 7) </execute>, and at the end "
    "<think> reasoning </think> <solution> 42 </solution>"
)
"""System text for recipes that act by code (`environment/codeact.py`, `reward/codeact.py`)."""


def check_template(tokenizer: "PreTrainedTokenizerBase", template: str, system: str) -> None:
    """Checks that a template can render rows at all.

    Raises UserError if there is no chat template, or the format string has not the one field {question}, or comes with
    a system text.
    """
    if template == "chat":
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template: set template to a format string, "
                "such as '{question}'"
            )
        return
    try:
        fields = {part[1:] for part in string.Formatter().parse(template) if part[1] is not None}
    except ValueError:  # a stray brace
        fields = set()
    if fields != {("question", "", None)}:
        raise UserError(
            f"the template {template!r} must be 'chat', or a format string whose one field is {{question}}, and in "
            "which a literal brace is written as {{ or }}"
        )
    if system:
        raise UserError("the option system belongs to template 'chat': write its text into the template itself")


def render(row: Row, tokenizer: "PreTrainedTokenizerBase", template: str, system: str = "") -> tuple[Prompt, str]:
    """Returns the prompt of a row, still without tokens, and the text of the tokens.

    Args:
        template: "chat" for the tokenizer's chat template with the generation prompt, else a format string with
            `{question}`; see `check_template`.
        system: system message of the chat template for rows without one of their own; empty for none.

    Raises:
        UserError: the template does not fit the row.
    """
    messages = _messages_of(row, system)
    if template == "chat":
        text = _chat_text(row, messages, tokenizer)
    elif isinstance(row.question, str) and not row.tools:
        text = template.format(question=row.question)
    else:
        raise UserError(
            f"{row.id} has {'tools' if row.tools else 'chat messages'}, which a format string cannot render: set "
            "template to 'chat'"
        )
    prefill = _PREFILL.search(text)
    prompt = Prompt(
        id=row.id,
        tokens=(),
        answer=row.answer,
        demonstration=_demonstration_text(row, messages, tokenizer, text),
        messages=tuple(messages),
        tools=tuple(row.tools),
        prefill=prefill[0] if prefill else "",
        metadata=row.metadata,
    )
    return prompt, text


def _messages_of(row: Row, system: str) -> list[dict[str, Any]]:
    """Returns the chat messages of a row, after its own system message or, without one, after `system`."""
    messages = [{"role": "user", "content": row.question}] if isinstance(row.question, str) else row.question
    if not system or has_own_system(row):
        return messages
    return [{"role": "system", "content": system}, *messages]


def has_own_system(row: Row) -> bool:
    """Returns whether a row begins with a system message."""
    return not isinstance(row.question, str) and row.question[0]["role"] == "system"


def _chat_text(row: Row, messages: list[dict[str, Any]], tokenizer: "PreTrainedTokenizerBase") -> str:
    """Returns messages as the chat template writes them; a message or tool that it leaves out is an error."""
    try:
        text = apply_template(tokenizer, map(for_template, messages), row.tools)
    except Exception as error:  # Jinja's errors, and all those of a template's own expressions
        raise UserError(
            f"the tokenizer's chat template rejects {row.id}: {one_line(str(error)) or type(error).__name__}: fix the "
            "row's messages, or the template"
        ) from error
    # templates may shorten earlier turns of the assistant, and may write what tools return in a form of their own
    given = [message for message in messages if message["role"] not in ("assistant", "tool")]
    left_out = [f"the {message['role']}'s message" for message in given if message["content"].strip() not in text]
    calls = [call for message in messages for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    names = [str(tool.get("function", tool).get("name", "")) for tool in (*row.tools, *calls)]
    left_out += [f"the tool {name!r}, or its calls" for name in names if name not in text]
    if left_out:
        raise UserError(
            f"the tokenizer's chat template leaves out of {row.id} {left_out[0]}: choose a model whose template writes "
            "it, repair the template, or remove it from the row"
        )
    return text


def _demonstration_text(
    row: Row, messages: list[dict[str, Any]], tokenizer: "PreTrainedTokenizerBase", prompt: str
) -> str:
    """Returns a row's demonstration as text: a message, such as a first call of a tool, as the chat template writes it.

    `prompt` is the text of the row's prompt, which the template has to write before the message.
    """
    if isinstance(row.demonstration, str):
        return row.demonstration
    answer = for_template({"content": "", **row.demonstration})
    text = apply_template(tokenizer, [*map(for_template, messages), answer], row.tools, is_answered=True)
    if not text.startswith(prompt):
        raise UserError(
            f"the tokenizer's chat template does not write the demonstration of {row.id} after its prompt: give it as "
            "text"
        )
    end = end_of_turn(tokenizer)
    ending = "" if end is None else str(tokenizer.convert_ids_to_tokens(end))
    return text.removeprefix(prompt).rstrip().removesuffix(ending)


def apply_template(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Iterable[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    is_answered: bool = False,
) -> str:
    """Returns messages as the tokenizer's chat template writes them, on a day that is always the same.

    Args:
        tools: descriptions of tools, in OpenAI's form.
        is_answered: whether the beginning of the next answer is left out.
    """
    described: list[Any] | None = [dict(tool) for tool in tools] or None
    template = tokenizer.get_chat_template(tools=described)
    return str(
        tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=described,
            chat_template=_FIXED_CLOCK + template if _CLOCK in template else template,
            tokenize=False,
            add_generation_prompt=not is_answered,
        )
    )


def end_of_turn(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """Returns the token that the chat template writes after an answer, such as `<|im_end|>`; None if it writes none.

    The answer is the last message: between turns, some templates write another token, which ends a part of a turn.
    """
    if not tokenizer.chat_template:
        return None
    try:
        text = apply_template(tokenizer, [{"role": "user", "content": "task"}, _ANSWER], is_answered=True)
        _, found, after = text.rpartition(_ANSWER["content"])
        tokens = tokenizer(after.lstrip(), add_special_tokens=False)["input_ids"] if found else []
    except Exception:  # see `render`, which refuses a template that rejects the prompts
        return None
    return tokens[0] if tokens and tokens[0] in tokenizer.added_tokens_decoder else None


def for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message as chat templates expect it: arguments of calls that are JSON as text are objects."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": list(map(_call_for_template, calls))}


def _call_for_template(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _call_for_template(call["function"])}
    return {**call, "arguments": _decode_arguments(call["arguments"])} if "arguments" in call else call


def _decode_arguments(arguments: Any) -> Any:
    """Returns the arguments of a call as an object if they are one in JSON, which is OpenAI's form; "" has none."""
    found = decode_json(arguments or "{}")
    return found if isinstance(found, dict) else arguments
