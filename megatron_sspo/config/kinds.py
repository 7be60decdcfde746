"""The kinds of configuration values. A field's annotation names its kind, which includes the range.

The description of a kind completes the sentence "<field> is <value>: it must be ...".
"""

import math
import numbers
import os
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any

from annotated_types import Predicate
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from megatron_sspo.config.naming import describe_value

LARGEST = 2**31 - 1  # the largest int32, the type that torch, NCCL and the servers count with
NOT_JSON = "not_json"  # the type of an error within options; its context has the texts `place`, `value` and `what`
_DEEPEST = 20  # levels of nested mappings and lists

_LARGEST_INTEGER = 2**63 - 1  # the largest int64
_OPTION = (
    "what JSON can hold: a string, a finite number (whole numbers of 64 bits), True, False, None, a list, or a dict "
    "whose keys are strings"
)


def _as_int(value: Any) -> Any:
    """Converts NumPy's integers to int; booleans, arrays and tensors stay as they are, and fail the check."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


def _as_float(value: Any) -> float:
    """Converts any real number to float; booleans, arrays and tensors are errors."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise PydanticCustomError("number", "not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _as_path(value: Any) -> Any:
    """Converts a Path to text, and replaces ~ by the home folder, which a shell does not do within an argument."""
    text = str(value) if isinstance(value, PurePath) else value
    return os.path.expanduser(text) if isinstance(text, str) and f"{text}/".startswith("~/") else text


def _as_tuple(value: Any) -> Any:
    """Converts a list to a tuple, and a string that is not empty to a tuple of one, as `--set` does."""
    return tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str) and value else value


def is_utf8_without_nul(text: str) -> bool:
    """Returns whether a text can be encoded as UTF-8 and contains no NUL, so that programs in C can read it."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _is_line(text: str) -> bool:
    return text.isprintable() and text == text.strip() and len(text) <= 1000


def _is_path(text: str) -> bool:
    fits = _is_line(text) and len(text.encode()) < 4096
    return text != "" and fits and all(len(part.encode()) < 256 for part in text.split("/"))


def _is_folder_name(text: str) -> bool:
    begins_well = text[:1].isalnum() or text[:1] == "_"
    return begins_well and _is_line(text) and "/" not in text and len(text.encode()) <= 200


def _is_set_name(text: str) -> bool:
    return _is_folder_name(text) and all(character.isalnum() or character in "-_" for character in text)


AsTuple = BeforeValidator(_as_tuple)
_Int = Annotated[int, BeforeValidator(_as_int)]
_Float = Annotated[float, BeforeValidator(_as_float)]
_Str = Annotated[str, BeforeValidator(_as_path)]

Count = Annotated[_Int, Field(ge=1, le=LARGEST, description="a whole number of 1 or more")]
Amount = Annotated[_Int, Field(ge=0, le=LARGEST, description="a whole number of 0 or more")]
GroupSize = Annotated[
    _Int, Field(ge=2, le=LARGEST, description="at least 2, a whole number: an advantage compares responses of a group")
]
Positive = Annotated[_Float, Field(gt=0, le=LARGEST, allow_inf_nan=False, description="a finite number above 0")]
# the ranks exchange their progress once a second, which a shorter timeout would take for a hang
Timeout = Annotated[
    _Float, Field(ge=5, le=LARGEST, allow_inf_nan=False, description="a finite number of 5 or more, in seconds")
]
NotNegative = Annotated[
    _Float, Field(ge=0, le=LARGEST, allow_inf_nan=False, description="a finite number of 0 or more")
]
Finite = Annotated[_Float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False, description="a finite number")]
AtLeastOne = Annotated[_Float, Field(ge=1, le=LARGEST, allow_inf_nan=False, description="a finite number of 1 or more")]
Decay = Annotated[_Float, Field(ge=0, lt=1, allow_inf_nan=False, description="a number of 0 or more and below 1")]
Probability = Annotated[_Float, Field(gt=0, le=1, allow_inf_nan=False, description="a number above 0 and at most 1")]
Text = Annotated[
    str, Predicate(is_utf8_without_nul), Field(description="a string without NUL characters and lone surrogates")
]
Line = Annotated[str, Predicate(_is_line), Field(description='a string of one line without spaces around it, or ""')]
FilePath = Annotated[
    _Str, Predicate(_is_path), Field(description="a path, as a string of one line with names below 256 bytes")
]
Plugin = Annotated[
    _Str, Predicate(_is_path), Field(description="a name, file.py:attribute or package.module:attribute, as a string")
]
MaybePlugin = Annotated[
    _Str,
    Predicate(lambda text: text == "" or _is_path(text)),
    Field(description='a name, file.py:attribute or package.module:attribute, as a string, or ""'),
]
FolderName = Annotated[
    str,
    Predicate(_is_folder_name),
    Field(
        description="the plain name of a folder, which is made in `output`: one line that begins with a letter, a "
        "digit or _, without /, of at most 200 bytes"
    ),
]
SetName = Annotated[
    str, Predicate(_is_set_name), Field(description="a name of letters, digits, - and _ that does not begin with -")
]
StopString = Annotated[
    str,
    Predicate(lambda text: text != "" and is_utf8_without_nul(text)),
    Field(description="a string that is not empty"),
]


def _find_non_json(value: Any, place: list[str], depth: int) -> Iterator[tuple[list[str], Any]]:
    """Yields each part of an option that JSON cannot represent, with its place."""
    if depth > _DEEPEST:
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or not is_utf8_without_nul(key) or not key:
                yield place, value
            else:
                yield from _find_non_json(item, [*place, key], depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _find_non_json(item, [*place, f"[{index}]"], depth + 1)
    elif not _is_scalar(value):
        yield place, value


def _is_scalar(value: Any) -> bool:
    match value:
        case str():
            return is_utf8_without_nul(value)
        case float():
            return math.isfinite(value)
        case int():
            return abs(value) <= _LARGEST_INTEGER
    return value is None or isinstance(value, PurePath)


def _check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    for place, value in _find_non_json(options, [], 0):
        deep = f", in at most {_DEEPEST} levels" if len(place) > _DEEPEST else ""
        raise PydanticCustomError(
            NOT_JSON, "not JSON", {"place": place, "value": describe_value(value), "what": _OPTION + deep}
        )
    return options


# options of a plug-in: `check_options` compares them with the parameters of its function
Options = Annotated[Mapping[str, Any], AfterValidator(_check_options), Field(description="a dict, {option: value}")]
# plug-ins by name, each with its options
PluginOptions = Annotated[Mapping[str, Options], Field(description="a dict, {name: {option: value}}")]
# fields of one of Megatron's dataclasses: `policy/options.py` compares them with its annotations
Fields = Annotated[Mapping[str, Any], Field(description="a dict, {field: value}")]
