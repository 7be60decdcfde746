"""`Row`: the unit that every source yields, and the conversion of a file's record into a row."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any

from megatron_sspo.config.kinds import Amount
from megatron_sspo.config.naming import describe_value
from megatron_sspo.data.checks import CHECKS, find_checks, read_checks_of
from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import decode_json

_MAX_NAMES = 20  # of a record's fields, in an error message
_TOOLS, _METADATA, _ACCEPTED = "tools", "metadata", "accepted_answers"
_BAD = "is a bad record"
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
    first: dict[str, Dropped] = {}
    counts = Counter(first.setdefault(row.reason, row).reason for row in dropped)
    shown = {reason: f"{reason} (the first: {first[reason].detail})" if reason == _BAD else reason for reason in first}
    return ", ".join(f"{count:,}: {shown[reason]}" for reason, count in counts.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A record as it was read from a file, not checked yet."""

    id: str  # id of the future row
    place: str  # file and line, for error messages
    values: Any  # a mapping, if the file is well-formed; the error, if the record cannot be read


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """The names of the fields of a file that make a `Row`, and which records do. A dot selects a nested field."""

    question: str = "question"  # text, or a list of chat messages
    answer: str = "answer"  # text, a number, a boolean, or a list of those that are accepted; "": the file has none
    demonstration: str = ""  # a worked response; "": the file has none
    answer_after: str = ""  # mark before the gold answer ("####" in GSM8K), last occurrence; "" takes the whole field
    tests: str = ""  # Python that checks a program, a text or a list; "": a column that `find_checks` knows
    cases: str = ""  # inputs and outputs of a program, in a form that `find_checks` knows; "": a column that it knows
    where: Mapping[str, Any] = field(default_factory=dict)  # field -> its value, or a list; others are no rows
    bad_rows: Amount = 0  # the largest number of bad records that are left out; one more is an error


def row_from_record(found: Record, fields: Fields) -> Row:
    """Converts a record of a file to a `Row`: the one place that decides what its columns become.

    The columns that `fields` names, and `tools`, are fields of the row. All others are metadata. Checks of a program
    that `fields` names, or `find_checks` finds, are added to the metadata as `tests` or `cases`. A row with checks
    needs no answer. Of a list of accepted answers, `answer` is the first, and the metadata have all of them as
    `accepted_answers`. Raises UserError if the record lacks a field, or its gold answer is of the wrong type or empty;
    `check_row` checks the other fields.
    """
    record, place = checked_values(found), found.place
    named = {kind: column for kind in CHECKS if (column := getattr(fields, kind))}
    checks = {kind: _named_checks(record, column, kind, place) for kind, column in named.items()} or find_checks(record)
    has_checks = bool(checks) or any(record.get(name) for name in CHECKS)
    needs_answer = fields.answer and not (has_checks and _find(record, fields.answer) in (None, "", _MISSING))
    answer_field = fields.answer if needs_answer else ""
    tools = decode_json(record.get(_TOOLS)) or ()
    answers = _answers(record, fields, place) if needs_answer else [""]
    return Row(
        id=found.id,
        question=_question(_look_up(record, fields.question, "question", place)),
        answer=answers[0],
        demonstration=_look_up(record, fields.demonstration, "demonstration", place) if fields.demonstration else "",
        tools=tuple(tools) if isinstance(tools, list) else tools,
        metadata={
            **_without(
                record, (fields.question, fields.answer, fields.demonstration, *named.values(), _TOOLS, _ACCEPTED)
            ),
            **{name: values for name, (_, values) in checks.items()},
            **({_ACCEPTED: answers} if len(answers) > 1 else {}),
        },
        columns=_columns(
            tuple(record),
            (("question", fields.question), ("answer", answer_field), ("demonstration", fields.demonstration)),
            tuple((name, column) for name, (columns, _) in checks.items() for column in columns),
        ),
    )


def rows_from_records(records: Iterable[Record], fields: Fields) -> list[Row | Dropped]:
    """Converts the records that `fields.where` selects, with a `Dropped` for each bad one.

    Raises UserError if there are more bad records than `fields.bad_rows`.
    """
    found: list[Row | Dropped] = []
    bad: list[str] = []
    for record in records:
        try:
            if not _is_selected(record, fields.where):
                continue
            row = row_from_record(record, fields)
            check_row(row, record.place)
            found.append(row)
        except UserError as error:
            bad.append(str(error))
            if len(bad) > fields.bad_rows:
                more = f"{len(bad)} records are bad, and bad_rows is {fields.bad_rows}; the first: " * (len(bad) > 1)
                raise UserError(f"{more}{bad[0]}") from error
            found.append(Dropped(id=record.id, reason=_BAD, detail=bad[-1]))
    return found


def checked_values(record: Record) -> Mapping[str, Any]:
    """Returns the fields of a record. Raises UserError if it could not be read, or has no named fields."""
    if isinstance(record.values, UserError):
        raise record.values
    if not isinstance(record.values, Mapping):
        raise UserError(
            f"{record.place}: a record must be an object with named fields, not {describe_value(record.values)}"
        )
    return record.values


def _is_selected(record: Record, where: Mapping[str, Any]) -> bool:
    wanted = {name: values if isinstance(values, list) else [values] for name, values in where.items()}
    return all(_look_up(checked_values(record), name, "where", record.place) in wanted[name] for name in wanted)


def _named_checks(record: Mapping[str, Any], column: str, kind: str, place: str) -> tuple[tuple[str, ...], Any]:
    if not (found := read_checks_of(kind, _look_up(record, column, kind, place))):
        raise UserError(f"{place}, field {column!r}: it has no {kind} of a known form, which docs/sandbox.md lists")
    return (column,), found


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


def check_row(row: Any, what: str) -> None:
    """Checks a row that a source has made, which may be the user's own.

    Raises UserError, with the source `what`, if it is no row, or a field of it has the wrong type.
    """
    if isinstance(row, Dropped):
        return
    if not isinstance(row, Row):
        raise UserError(f"{what} gave {describe_value(row)} as a row: let it give Rows, of megatron_sspo.data.row")
    is_answer = isinstance(row.demonstration, Mapping) and row.demonstration.get("role") == "assistant"
    are_tools = isinstance(row.tools, (list, tuple)) and all(isinstance(tool, Mapping) for tool in row.tools)
    rules = (
        ("id", isinstance(row.id, str), "text"),
        ("answer", isinstance(row.answer, str), "text"),
        ("demonstration", isinstance(row.demonstration, str) or is_answer, "text, or a message of the assistant"),
        ("tools", are_tools, "a list of descriptions in OpenAI's form"),
    )
    wrong = [
        f"{name} is {describe_value(getattr(row, name))}, and must be {kind}" for name, ok, kind in rules if not ok
    ]
    if wrong := wrong or _mistakes(row.question):
        raise UserError(f"{what}, row {describe_value(row.id)}: {wrong[0]}")


def _mistakes(question: Any) -> list[str]:
    """Returns what is wrong with a question, which must be text or a list of chat messages, and not empty."""
    if isinstance(question, str):
        return [] if question.strip() else ["the question is empty: fill it in, or drop the record"]
    if not isinstance(question, list):
        return [f"the question is {describe_value(question)}, and must be text or a list of chat messages"]
    for number, message in enumerate(question, start=1):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            return [f"message {number} is {describe_value(message)}, and must have the texts 'role' and 'content'"]
    if not any(message["content"].strip() for message in question if message["role"] != "system"):
        return ["the question is empty: no message but the system's has text; fill it in, or drop the record"]
    if question[-1]["role"] == "assistant":
        return ["the last message is the assistant's, after which the policy would answer: leave it out"]
    return []


def _question(given: Any) -> Any:
    """Returns a question whose messages have text as content, without the nulls that a column of messages has.

    OpenAI's calls of tools have null as content, and its texts may be in parts.
    """
    if not isinstance(given, list):
        return given
    return [_message(message) if isinstance(message, Mapping) else message for message in given]


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    found = {key: value for key, value in message.items() if value is not None}
    if "tool_calls" in found:
        found.setdefault("content", "")
    parts = content if isinstance(content := found.get("content"), list) else []
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return {**found, "content": "".join(texts)} if texts and len(texts) == len(parts) else found


def _answers(record: Mapping[str, Any], fields: Fields, place: str) -> list[str]:
    """Returns the gold answer, or each of a list of accepted answers."""
    found = _look_up(record, fields.answer, "answer", place)
    return [_answer(one, fields, place) for one in (found if isinstance(found, list) and found else [found])]


def _answer(answer: Any, fields: Fields, place: str) -> str:
    where = f"{place}, field {fields.answer!r}"
    if not (text := _text_of_scalar(answer).strip()):
        raise UserError(
            f"{where}: the gold answer must be text that is not empty, a finite number or a boolean, and this is "
            f"{describe_value(answer)}: fix or drop the record, or name another field by the option answer"
        )
    if not fields.answer_after:
        return text
    _, mark, text = text.rpartition(fields.answer_after)
    if not mark or not text.strip():
        raise UserError(
            f"{where}: nothing follows the mark {fields.answer_after!r}: fix the record, or change the option "
            "answer_after"
        )
    return text.strip()


def _text_of_scalar(value: Any) -> str:
    """Returns what a gold answer that is text, a number or a boolean means as text; "" for any other value.

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
    return ""


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
        names = ", ".join(map(describe_value, [*record][:_MAX_NAMES])) + ", ..." * (len(record) > _MAX_NAMES)
        raise UserError(
            f"{place}, field {name!r}: there is no such field among {names}: fix the record, or name the right "
            f"field by the option {option}"
        )
    return value
