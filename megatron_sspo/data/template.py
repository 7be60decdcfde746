"""Renders a row as the text that the policy continues."""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from megatron_sspo.config.naming import one_line
from megatron_sspo.data.row import Row, check_characters
from megatron_sspo.errors import UserError
from megatron_sspo.files.strict_json import decode_json

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
MAX_CHARACTERS = 64  # of a text for each token that is allowed; a text of megabytes takes minutes to be tokenized

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


def render(row: Row, tokenizer: "PreTrainedTokenizerBase", template: str, system: str = "") -> str:
    """Returns the prompt as text.

    Args:
        row: the row with the question.
        tokenizer: the tokenizer, whose chat template is used.
        template: "chat" for the tokenizer's chat template with the generation prompt, else a format string with
            `{question}`.
        system: system message of the chat template; empty for none.

    Raises:
        UserError: the template does not fit the row or the tokenizer.
    """
    _check_template(tokenizer, template, system)
    if template != "chat":
        if not isinstance(row.question, str):
            raise UserError(
                f"the question of {row.id} is a list of chat messages, which a format string cannot render: "
                "set template to 'chat'"
            )
        if row.tools:
            raise UserError(
                f"{row.id} has tools, which a format string cannot render: set template to 'chat', or give the field "
                "tools another name"
            )
        text = template.format(question=row.question)
        check_characters(text, row.id)
        return text
    messages = messages_of(row, system)
    try:
        text = apply_template(tokenizer, map(for_template, messages), row.tools)
    except Exception as error:  # Jinja's errors, and all those of a template's own expressions
        raise UserError(
            f"the tokenizer's chat template rejects {row.id}: {one_line(str(error)) or type(error).__name__}: fix the "
            "row's messages, or the template"
        ) from error
    for number, message in enumerate(messages, start=1):
        # templates may shorten earlier turns of the assistant, and may write what tools return in a form of their own
        if message["role"] not in ("assistant", "tool") and message["content"].strip() not in text:
            raise UserError(
                f"the tokenizer's chat template leaves out message {number} of {row.id}, of the role "
                f"{message['role']!r}: fix the row's messages or prompts.system, repair the template, or set template "
                "to a format string such as '{question}'"
            )
    called = [call for message in messages for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    for tool in (*row.tools, *called):
        if (name := str(tool.get("function", tool).get("name", ""))) not in text:
            raise UserError(
                f"the tokenizer's chat template leaves out the tool {name!r} of {row.id}, or its calls: choose a model "
                "whose template writes them, or remove the row's"
            )
    check_characters(text, row.id)  # also those of what else the template writes, such as calls of tools
    return text


def render_demonstration(row: Row, tokenizer: "PreTrainedTokenizerBase", system: str, prompt: str) -> str:
    """Returns a row's demonstration as text: a message, such as a first call of a tool, as the chat template writes it.

    Args:
        prompt: the row as `render` returns it.

    Raises:
        UserError: the template does not write the message after the prompt.
    """
    if isinstance(row.demonstration, str):
        return row.demonstration
    answer = for_template({"content": "", **row.demonstration})
    messages = [*map(for_template, messages_of(row, system)), answer]
    text = apply_template(tokenizer, messages, row.tools, is_answered=True)
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


def prefill_of(text: str) -> str:
    """Returns what a prompt ends with if that opens thoughts, or opens and closes empty ones; "" if it does not."""
    found = _PREFILL.search(text)
    return found[0] if found else ""


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
    return {**call, "arguments": decode_arguments(call["arguments"])} if "arguments" in call else call


def decode_arguments(arguments: Any) -> Any:
    """Returns the arguments of a call as an object if they are one in JSON, which is OpenAI's form; "" has none."""
    found = decode_json(arguments or "{}")
    return found if isinstance(found, dict) else arguments


def messages_of(row: Row, system: str) -> list[dict[str, Any]]:
    """Returns the chat messages of a row, after the system message if there is one.

    Raises:
        UserError: there is a system message, and the row has its own.
    """
    messages = [{"role": "user", "content": row.question}] if isinstance(row.question, str) else row.question
    if not system:
        return messages
    if messages[0]["role"] == "system":
        raise UserError(
            f"{row.id} has a system message of its own: leave the option system empty, or remove the row's message"
        )
    return [{"role": "system", "content": system}, *messages]


def _check_template(tokenizer: "PreTrainedTokenizerBase", template: str, system: str) -> None:
    """Checks that a template can render rows at all.

    Raises:
        UserError: there is no chat template, or the format string has an unknown field, a stray brace or no field, or
            comes with a system text.
    """
    if template == "chat":
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template: set template to a format string, "
                "such as '{question}'"
            )
        return
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UserError(
            f"the template {template!r} is malformed ({error}): write a literal brace as {{{{ or }}}}"
        ) from error
    fields = [(name, conversion, spec) for _, name, spec, conversion in parsed if name is not None]
    for name, conversion, spec in fields:
        if name != "question" or conversion or spec:
            raise UserError(
                f"the template {template!r} has the unknown field {name!r}: the one field is {{question}}, with "
                "nothing after the name, and a literal brace is written as {{ or }}"
            )
    if not fields:
        raise UserError(f"the template {template!r} has no {{question}}: every prompt would be the same")
    if system:
        raise UserError("the option system belongs to template 'chat': write its text into the template itself")
