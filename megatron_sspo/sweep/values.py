"""Parses the values of a varied field in `--vary`: `objective=[sspo(), gspo()]` or `objective={hard: gspo()}`."""

import ast
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron_sspo.config.naming import one_line, shorten
from megatron_sspo.errors import UserError

_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_QUOTES = "\"'"
_LONGEST = 60  # bytes of a value's name within the name of a run
_RESERVED = {
    "seed": "--seeds is the number of seeds",
    "name": "each run is named after its values",
    "output": "--output is the folder of all runs",
}


@dataclass(frozen=True)
class Value:
    """One value of a varied field.

    Attributes:
        text: the value's text as for `--set FIELD=`.
        label: the label in tables and pictures.
        name: the part of a run's name, without characters that are special in a shell or a file system.
    """

    text: str
    label: str
    name: str


@dataclass(frozen=True)
class GivenValue:
    """A value from the command line; `label` is "" if none was given."""

    text: str
    label: str = ""


def read_vary(text: str) -> tuple[str, list[GivenValue]]:
    """Returns the field and the values of `FIELD=[value, ...]` or `FIELD={label: value, ...}`.

    Raises:
        UserError: the text has another form, or contains a value or label twice.
    """
    field, equals, values = (part.strip() for part in text.partition("="))
    what = f"--vary {shorten(text)!r}"
    if not equals or not field:
        missing = "field before the '='" if equals else "'='"
        raise UserError(f"{what} has no {missing}: write it as field.field=[value, value]")
    if field in _RESERVED:
        raise UserError(f"--vary {field} is not possible: {_RESERVED[field]}")
    if values[:1] + values[-1:] not in ("[]", "{}"):
        raise UserError(f'{what} has no list of values: write it as --vary {field}="[value, value]"')
    found = [_given(item, what, labelled=values[0] == "{") for item in _items(values[1:-1], what)]
    if not found:
        raise UserError(f"{what} has no values: write one or more between the brackets")
    for of_all in ([value.text for value in found], [value.label for value in found if value.label]):
        if twice := next((item for item in of_all if of_all.count(item) > 1), None):
            raise UserError(f"{what} has {shorten(twice)!r} twice: give each value and each label once")
    return field, found


def merge_values(known: Sequence[Value], given: Iterable[GivenValue], field: str) -> list[Value]:
    """Returns the known values and then the new ones, each with a unique name.

    Raises:
        UserError: another value has the same label, or a known value gets another label.
    """
    values = list(known)
    for one in given:
        label = one.label or one.text or '""'
        same = next((value for value in values if value.text == one.text), None)
        if same is not None:
            if one.label not in ("", same.label):
                raise UserError(
                    f"{field}={shorten(one.text)} has the label {same.label!r} in this sweep, not {one.label!r}: "
                    "give it that label, or choose another --output"
                )
            continue
        if other := next((value for value in values if value.label == label), None):
            raise UserError(
                f"{label!r} is the label of {field}={shorten(other.text)} in this sweep: choose another label for "
                f"{shorten(one.text)}"
            )
        values.append(Value(one.text, label, _name(label, one.text, {value.name.casefold() for value in values})))
    return values


def digest(text: str) -> str:
    """Returns the first eight hexadecimal digits of a text's SHA-256."""
    # text from the command line that is not UTF-8 has halves of surrogate pairs
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]


def truncate_name(name: str, longest: int, whole: str) -> str:
    """Returns the name with at most `longest` bytes; a name that is cut ends with a digest of `whole`."""
    encoded = name.encode()
    if len(encoded) <= longest:
        return name
    return f"{encoded[: longest - 9].decode(errors='ignore').rstrip('-.,=')}~{digest(whole)}"


def _name(label: str, text: str, taken: set[str]) -> str:
    """Returns letters, digits and some signs of the label, and a digest of the value if the name is taken.

    A minus before the rest is kept, because it is a number's sign.
    """
    plain = unicodedata.normalize("NFC", label).replace("()", "")
    sign = "-" if plain.startswith("-") else ""
    plain = sign + (re.sub(r"[^\w.+-]+", "-", plain).strip("-") or "value")
    name = truncate_name(plain, _LONGEST, text)
    return name if name.casefold() not in taken else f"{truncate_name(plain, _LONGEST - 9, text)}~{digest(text)}"


def _given(item: str, what: str, *, labelled: bool) -> GivenValue:
    if not labelled:
        return GivenValue(_unquoted(item))
    parts = _split(item, ":", what)
    if len(parts) < 2:
        raise UserError(f"{what} has {shorten(item)!r} without a label: write it as label: value")
    label, value = one_line(_unquoted(parts[0])), item[len(parts[0]) :].lstrip().removeprefix(":").strip()
    if not label or not value:
        raise UserError(f"{what} has a value or a label that is empty: write label: value")
    return GivenValue(_unquoted(value), label)


def _items(text: str, what: str) -> list[str]:
    items = _split(text, ",", what)
    if items and not items[-1]:  # a comma at the end
        items.pop()
    if not all(items):
        raise UserError(f"{what} has a comma with no value before it: write one between the commas")
    return items


def _split(text: str, separator: str, what: str) -> list[str]:
    """Splits the text at separators outside of brackets and quotes."""
    parts, start, open_brackets, quote, is_escaped = [], 0, [], "", False
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote and not is_escaped else quote
            is_escaped = character == "\\" and not is_escaped
        elif character in _QUOTES:
            quote = character
        elif character in _BRACKETS:
            open_brackets.append(_BRACKETS[character])
        elif character in _BRACKETS.values():
            if not open_brackets or open_brackets.pop() != character:
                raise UserError(f"{what} has a {character!r} that closes nothing: balance the brackets")
        elif character == separator and not open_brackets:
            parts.append(text[start:place].strip())
            start = place + 1
    if quote or open_brackets:
        raise UserError(f"{what} lacks a closing {quote or open_brackets[-1]!r}: balance brackets and quotes")
    return [*parts, text[start:].strip()] if text.strip() else []


def _unquoted(text: str) -> str:
    """Returns a Python string literal's value, or any other text unchanged."""
    if text[:1] in _QUOTES and text[:1]:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
        return value if isinstance(value, str) else text
    return text
