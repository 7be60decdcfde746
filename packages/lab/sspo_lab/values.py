"""Parses the values of a varied field in `--vary`: `objective=[sspo(), gspo()]` or `objective={hard: gspo()}`."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sspo_lab.trainer import LabError

_LONGEST = 60  # bytes of a value's name within the name of a run


@dataclass(frozen=True)
class Value:
    """One value of a varied field.

    Attributes:
        text: the value's text as for `--set FIELD=`.
        label: the label in tables and figures; "" if none was given, until `merge_values` gives it one.
        name: the part of a run's name, without characters that are special in a shell or a file system.
    """

    text: str
    label: str = ""
    name: str = ""


def read_vary(text: str) -> tuple[str, list[Value]]:
    """Returns the field and the values of `FIELD=[value, ...]` or `FIELD={label: value, ...}`.

    Raises LabError if the text has another form, or the field is one that a sweep sets itself.
    """
    field, _, values = (part.strip() for part in text.partition("="))
    if field in ("seed", "name", "output"):
        raise LabError(f"--vary {field} is not possible: a sweep sets it itself, by --seeds and --output")
    is_labelled = values[:1] == "{"
    items = _split(values[1:-1], ",") if values[:1] + values[-1:] in ("[]", "{}") else None
    if items and not items[-1]:  # after a comma at the end
        items.pop()
    found = [_labelled(item) if is_labelled else Value(_unquoted(item)) for item in items or () if item]
    if (
        not field
        or not items
        or len(found) < len(items)
        or (is_labelled and not all(v.label and v.text for v in found))
    ):
        raise LabError(
            f"--vary {text!r} cannot be read: write it as field.field=[value, value] or as "
            "field.field={label: value, label: value}, with brackets and quotes closed"
        )
    return field, found


def merge_values(known: Sequence[Value], given: Iterable[Value], field: str) -> list[Value]:
    """Returns the known values and then the new ones, each with a label and a unique name.

    Raises LabError if two values have the same label, or one has two labels.
    """
    values = list(known)
    for one in given:
        label = one.label or one.text or '""'
        same = next((value for value in values if value.text == one.text), None)
        if same is not None and one.label in ("", same.label):
            continue
        if other := same or next((value for value in values if value.label == label), None):
            raise LabError(
                f"{field}={other.text} has the label {other.label!r} in this sweep: give each value one label of its "
                "own, or choose another --output"
            )
        values.append(Value(one.text, label, _name(label, one.text, {value.name.casefold() for value in values})))
    return values


def truncate_name(name: str, longest: int, whole: str) -> str:
    """Returns the name with at most `longest` bytes; a name that is cut ends with a digest of `whole`."""
    encoded = name.encode()
    if len(encoded) <= longest:
        return name
    return f"{encoded[: longest - 9].decode(errors='ignore').rstrip('-.,=')}~{_digest(whole)}"


def _name(label: str, text: str, taken: set[str]) -> str:
    """Returns letters, digits and some signs of the label, and a digest of the value if the name is taken."""
    plain = unicodedata.normalize("NFC", label).replace("()", "")
    sign = "-" if plain.startswith("-") else ""  # of a number
    plain = sign + (re.sub(r"[^\w.+-]+", "-", plain).strip("-") or "value")
    name = truncate_name(plain, _LONGEST, text)
    return name if name.casefold() not in taken else f"{truncate_name(plain, _LONGEST - 9, text)}~{_digest(text)}"


def _digest(text: str) -> str:
    # text from the command line that is not UTF-8 has halves of surrogate pairs
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]


def _labelled(item: str) -> Value:
    label = _split(item, ":")[0]
    return Value(_unquoted(item[len(label) :].lstrip().removeprefix(":").strip()), " ".join(_unquoted(label).split()))


def _split(text: str, separator: str) -> list[str]:
    """Splits the text at separators outside of brackets and quotes; returns [""] if one of these is not closed."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "([{") - (character in ")]}")
        if character == separator and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [""] if depth or quote else [part.strip() for part in parts]


def _unquoted(text: str) -> str:
    return text[1:-1] if text[:1] == text[-1:] and text[:1] in ("'", '"') and len(text) > 1 else text
