"""`Row`: the unit that every source yields, and the conversion of a file's record into a row."""

import math
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from megatron_sspo.config.kinds import LARGEST
from megatron_sspo.config.naming import describe_value, one_line
from megatron_sspo.data.canonical import canonical
from megatron_sspo.data.checks import CHECKS, find_checks
from megatron_sspo.errors import UserError, os_errors_as_user_errors, short_repr
from megatron_sspo.files.strict_json import decode_json

_MAX_NAMES = 20  # of a record's fields, in an error message
_MAX_LEVELS = 100  # of values in values in the metadata; Python writes and copies some hundreds
_TOOLS, _METADATA = "tools", "metadata"
_MISSING = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A question with its gold answer, before it is rendered and tokenized."""

    id: str  # unique and stable within its source: "gsm8k.jsonl:17"
    # text, or chat messages of "role" and "content", and of what else the chat template reads ("tool_calls")
    question: str | list[dict[str, Any]]
    answer: str  # the gold answer; "" if there is none
    demonstration: str | Mapping[str, Any] = ""  # a worked response, or a message that the chat template writes
    tools: Sequence[Mapping[str, Any]] = ()  # descriptions of tools in OpenAI's form, for the chat template
    metadata: Mapping[str, Any] = field(default_factory=dict)  # all other fields of the record
    subset: str = ""  # the set of a mixture that the row belongs to
    share: float = 0.0  # share of its subset in all draws, up to a factor; 0 draws each row of the source once
    # (what a column of the record became, the column), for each of them; () if the row was made in another way
    columns: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """A placeholder for a row that is left out."""

    id: str
    reason: str  # the same text for all rows that are dropped for this reason, which are counted by it
    detail: str = ""  # specific to this row


def count_dropped(dropped: Iterable[Dropped]) -> str:
    """Counts dropped rows by reason, on one line: "17: repeats an evaluation question, 3: ..."."""
    return ", ".join(f"{count:,}: {reason}" for reason, count in Counter(row.reason for row in dropped).items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A record as it was read from a file, not checked yet."""

    id: str  # id of the future row
    place: str  # file and line, for error messages
    values: Any  # a mapping, if the file is well-formed


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """The names of the fields of a file that make a `Row`. A dot selects a field of a nested record."""

    question: str
    answer: str  # "": the file has none
    demonstration: str = ""  # "": the file has none
    answer_after: str = ""  # mark before the gold answer ("####" in GSM8K), last occurrence; "" takes the whole field


def row_from_record(found: Record, fields: Fields) -> Row:
    """Checks a record of a file and converts it to a `Row`: the one place that decides what its columns become.

    The columns that `fields` names, and `tools`, are fields of the row. All others are metadata. Checks of a program
    that `find_checks` finds are added to the metadata as `tests` or `cases`. A row with checks needs no answer.

    Raises:
        UserError: the record lacks a field, or a field has the wrong type or is empty.
    """
    record, place = found.values, found.place
    if not isinstance(record, Mapping):
        raise UserError(f"{place}: a record must be an object with named fields, and this is {describe_type(record)}")
    demonstration = _look_up(record, fields.demonstration, "demonstration", place) if fields.demonstration else ""
    if not isinstance(demonstration, str) and not _is_answer(demonstration):
        raise UserError(
            f"{place}, field {fields.demonstration!r}: the demonstration must be text, or a message of the assistant, "
            f"and this is {describe_type(demonstration)}: fix the record, or leave the option demonstration empty"
        )
    checks = find_checks(record)
    has_checks = bool(checks) or any(record.get(name) for name in CHECKS)
    needs_answer = fields.answer and not (has_checks and _find(record, fields.answer) in (None, "", _MISSING))
    answer_field = fields.answer if needs_answer else ""
    return Row(
        id=found.id,
        question=_question(record, fields.question, place),
        answer=_answer(record, fields, place) if needs_answer else "",
        demonstration=demonstration,
        tools=_tools(record.get(_TOOLS), place),
        metadata={
            **_without(record, (fields.question, fields.answer, fields.demonstration, _TOOLS)),
            **{name: values for name, (_, values) in checks.items()},
        },
        columns=_columns(
            tuple(record),
            (("question", fields.question), ("answer", answer_field), ("demonstration", fields.demonstration)),
            tuple((name, column) for name, (columns, _) in checks.items() for column in columns),
        ),
    )


def _is_answer(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("role") == "assistant"


@cache
def _columns(
    names: tuple[str, ...], fields: tuple[tuple[str, str], ...], checks: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Returns `Row.columns`; rows with the same columns share it."""
    used = [pair for pair in (*fields, *checks) if pair[1]]
    used += [(name, name) for name in (_TOOLS, *CHECKS) if name in names and name not in dict(used)]
    taken = {column for _, column in used}
    return (*used, *((_METADATA, name) for name in names if name not in taken))


def describe_columns(columns: Iterable[tuple[str, str]]) -> str:
    """Describes what columns became, on one line: "question ← task, answer; metadata: level, url"."""
    pairs = list(dict.fromkeys(columns))
    used = [role if role == column else f"{role} ← {column}" for role, column in pairs if role != _METADATA]
    others = [column for role, column in pairs if role == _METADATA]
    return ", ".join(used) + (f"; metadata: {', '.join(others)}" if others else "")


def _without(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns a record without the fields of these names; of a nested field a.b, the other fields of a stay."""
    left = dict(record)
    for name in names:
        if name in record:
            left.pop(name, None)
            continue
        outer, _, inner = name.partition(".")
        if inner and isinstance(nested := left.get(outer), Mapping):
            left[outer] = _without(nested, [inner])
            if not left[outer]:
                del left[outer]
    return left


def existing_file(path: str | Path) -> Path:
    """Returns the path of a source's file.

    Raises:
        UserError: there is no such file.
    """
    path = Path(path)
    with os_errors_as_user_errors():
        is_file = path.is_file()
    if not is_file:
        raise UserError(f"there is no file {path}: check the path, which is relative to {Path.cwd()}")
    return path


def check_row(row: Any, what: str) -> None:
    """Checks a row that a source has made, which may be the user's own.

    Raises:
        UserError: it is no row, or a field of it has the wrong type; the message names `what`, the source.
    """
    if isinstance(row, Dropped):
        return
    if not isinstance(row, Row):
        raise UserError(f"{what} gave {describe_value(row)} as a row: let it give Rows, of megatron_sspo.data.row")
    where = f"{what}, row {describe_value(row.id)}"
    for name in ("id", "answer", "demonstration", "subset"):
        value = getattr(row, name)
        if not isinstance(value, str) and not (name == "demonstration" and _is_answer(value)):
            raise UserError(f"{where}: {name} is {describe_value(value)}, and must be text")
    if not isinstance(row.tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in row.tools):
        raise UserError(f"{where}: tools is {describe_value(row.tools)}, and must be a list of descriptions of tools")
    if not isinstance(row.metadata, Mapping):
        raise UserError(f"{where}: metadata is {describe_value(row.metadata)}, and must be a dict")
    _check_levels(row.metadata, where, _MAX_LEVELS)
    if not isinstance(row.share, (int, float)) or not 0 <= row.share <= LARGEST:
        raise UserError(f"{where}: share is {describe_value(row.share)}, and must be a number from 0 to {LARGEST}")
    try:
        canonical(row.metadata)
        pickle.dumps(row)
    except Exception as error:
        raise UserError(
            f"{where}: the row cannot be compared with that of a resumed run, or sent to other processes: "
            f"{one_line(str(error))}; let its metadata hold texts, numbers, lists and dicts"
        ) from error
    _check_question(row.question, where, "fix it in the source")
    for text in (row.answer, row.demonstration):
        if isinstance(text, str):
            check_characters(text, where)


def _question(record: Mapping[str, Any], name: str, place: str) -> str | list[dict[str, Any]]:
    question = _look_up(record, name, "question", place)
    if isinstance(question, list):
        question = [_with_text(message) for message in question]
    _check_question(
        question, f"{place}, field {name!r}", "fix the record, or name another field by the option question"
    )
    if isinstance(question, str):
        return question
    # a column of messages has null for what only other messages have
    return [{key: value for key, value in message.items() if value is not None} for message in question]


def _with_text(message: Any) -> Any:
    """Returns a message whose content is text: OpenAI's calls of tools have null, and its texts may be in parts."""
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return {**message, "content": ""}
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    if texts and len(texts) == len(parts):
        return {**message, "content": "".join(texts)}
    return message


def _check_question(question: Any, where: str, remedy: str) -> None:
    """Raises UserError unless a question is text or a list of chat messages, and not empty."""
    if isinstance(question, str):
        if not question.strip():
            raise UserError(f"{where}: the question is empty: fill it in, or drop the record")
        check_characters(question, where)
        return
    if not isinstance(question, list):
        raise UserError(
            f"{where}: a question must be text or a list of chat messages, and this is {describe_type(question)}: "
            f"{remedy}"
        )
    if not question:
        raise UserError(f"{where}: the question is an empty list of messages: fill it in, or drop the record")
    for number, message in enumerate(question, start=1):
        if not is_message(message):
            raise UserError(
                f"{where}: message {number} must be an object with the texts 'role' and 'content', and this is "
                f"{short_repr(message)}: rewrite the messages in OpenAI's form"
            )
        if not message["role"]:
            raise UserError(f"{where}: message {number} has an empty role: write user, assistant, system or tool")
        check_characters(message["role"] + message["content"], where)
    if not any(message["content"].strip() for message in question if message["role"] != "system"):
        raise UserError(f"{where}: the question is empty: no message but the system's has text; fill it in, or drop it")
    if question[-1]["role"] == "assistant":
        raise UserError(
            f"{where}: the last message is the assistant's, which may be the answer, and the policy would answer after "
            "it: leave it out of the question"
        )


def is_message(value: Any) -> bool:
    """Returns whether a value is a message of a chat, with the texts `role` and `content`."""
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _tools(given: Any, place: str) -> tuple[dict[str, Any], ...]:
    """Returns the descriptions of tools that a record has as a list, or as its JSON."""
    tools = decode_json(given) or ()
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) and tool for tool in tools):
        raise UserError(
            f"{place}, field {_TOOLS!r}: the tools must be a list of their descriptions in OpenAI's form, and this is "
            f"{short_repr(given)}: fix the record, or give the field another name"
        )
    return tuple(map(dict, tools))


def _text_of_scalar(value: Any) -> str | None:
    """Returns what a gold answer that is text, a number or a boolean means as text; None for any other value.

    A whole float is an integer, because columns of integers become floats where a value is missing.
    """
    match value:
        case str():
            return value
        case bool() | int():
            return str(value)
        case Decimal() if value.is_finite():
            return f"{value:f}"
        case float() if math.isfinite(value):
            return str(int(value)) if value.is_integer() else str(value)
    return None


def _answer(record: Mapping[str, Any], fields: Fields, place: str) -> str:
    answer = _look_up(record, fields.answer, "answer", place)
    where = f"{place}, field {fields.answer!r}"
    if (text := _text_of_scalar(answer)) is None:
        raise UserError(
            f"{where}: the gold answer must be text, a finite number or a boolean, and this is "
            f"{describe_type(answer)}: fix or drop the record, or name another field by the option answer"
        )
    if fields.answer_after:
        _, mark, text = text.rpartition(fields.answer_after)
        if not mark:
            raise UserError(
                f"{where}: the mark {fields.answer_after!r} does not occur: fix the record, or change the option "
                "answer_after"
            )
    if not text.strip():
        raise UserError(f"{where}: the gold answer is empty: fill it in, or drop the record")
    check_characters(text, where)
    return text.strip()


def check_characters(text: str, where: str) -> None:
    """Raises UserError for half of a character, such as `\\ud800` in JSON, which cannot be tokenized or written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: the text has half of a surrogate pair: repair the record, or drop it") from None


def _check_levels(value: Any, where: str, left: int) -> None:
    """Raises UserError for values in values to such a depth that a checkpoint could not be written."""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    if items and not left:
        raise UserError(f"{where}: the metadata has more than {_MAX_LEVELS} levels: flatten it, or drop the field")
    for item in items:
        _check_levels(item, where, left - 1)


def _find(record: Mapping[str, Any], name: str) -> Any:
    """Returns record["a.b"], or record["a"]["b"] if there is no such key; _MISSING if there is neither."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _look_up(record: Mapping[str, Any], name: str, option: str, place: str) -> Any:
    if (value := _find(record, name)) is _MISSING:
        names = ", ".join(map(short_repr, [*record][:_MAX_NAMES])) + ", ..." * (len(record) > _MAX_NAMES)
        raise UserError(
            f"{place}, field {name!r}: there is no such field among {names}: fix the record, or name the right "
            f"field by the option {option}"
        )
    return value


def describe_type(value: Any) -> str:
    """Describes a value for error messages."""
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return f"of type {type(value).__name__}"
