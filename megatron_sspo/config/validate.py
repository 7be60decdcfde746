"""Checks values by their annotations with pydantic; an error is one sentence."""

import functools
import json
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from megatron_sspo.config.naming import describe_value, one_line
from megatron_sspo.errors import UserError

T = TypeVar("T")

_CONFIG = ConfigDict(strict=True, revalidate_instances="always", arbitrary_types_allowed=True, extra="forbid")


class HintMismatch(Exception):
    """The value does not fit the annotation; the text is what it must be."""


def validate(config: T, kind: type[T]) -> T:
    """Checks every value of a dataclass of type `kind` by its field's annotation, and returns a copy.

    The copy has the fields' own types: a tuple for a list, a string for a path. Raises UserError if a value is wrong;
    the message names the field, the value, and what it must be.
    """
    try:
        return _adapter(kind).validate_python((config,))[0]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"][1:])
    where = f"{place.lstrip('.') or 'the run'} is {describe_value(first['input'])}"
    raise UserError(f"{where}: {_requirement(first)}")


def convert_to_hint(value: Any, hint: Any) -> Any:
    """Converts a value to its annotation: a JSON list becomes a tuple, and a string a Path, if these are annotated.

    If the annotation cannot be evaluated, for example because of an undefined name, the value is returned unchanged.
    Raises HintMismatch if the value has another type.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydantic warns about unusual annotations
            adapter: TypeAdapter[Any] = TypeAdapter(tuple[hint], config=_CONFIG)  # pyright: ignore
    except Exception:  # the annotation cannot be used (pydantic's errors, NameError); the user's value may be right
        return value
    try:
        found = adapter.validate_python((value,))[0]
        return value if isinstance(found, Iterator) else found  # pydantic reads an Iterable later, and only once
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    try:
        return adapter.validate_json(json.dumps([value], allow_nan=False))[0]
    except (ValidationError, TypeError, ValueError):
        raise HintMismatch(_requirement(first)) from None


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    # In a tuple, because an adapter's config applies to dataclasses inside its type, but not to a dataclass itself.
    return TypeAdapter(tuple[kind], config=_CONFIG)  # pyright: ignore


def _requirement(error: Any) -> str:
    """Returns pydantic's own words for what a value must be."""
    text = one_line(error["msg"])
    return text.replace("Input should be", "it must be", 1) if text.startswith("Input should be") else text
