"""Checks a value against the annotation of a function's parameter, or of a field of a foreign dataclass."""

import json
import warnings
from collections.abc import Iterator
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

_CONFIG = ConfigDict(strict=True, arbitrary_types_allowed=True, extra="forbid")


class HintMismatch(Exception):
    """The value does not fit the annotation."""


def convert_to_hint(value: Any, hint: Any) -> Any:
    """Converts a value to its annotation: a JSON list becomes a tuple, and a string a Path, if these are annotated.

    If the annotation cannot be evaluated, for example because of an undefined name, the value is returned unchanged.

    Raises:
        HintMismatch: the value has another type.
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
    except ValidationError:
        pass
    except Exception:  # isinstance fails for some protocols
        return value
    try:
        return adapter.validate_json(json.dumps([value], allow_nan=False))[0]
    except (ValidationError, TypeError, ValueError, RecursionError):
        raise HintMismatch from None
