"""Parses JSON that the policy has written."""

import json
import math
from typing import Any

_DEEPEST = 64  # far from Python's limit of recursion, so that the values can be written and rendered


def parse_json(text: str) -> Any:
    """Returns the value of a text.

    Raises ValueError if it is not JSON, or has what a client could not send again: a number that is not finite, values
    that are nested too deeply, or half of a surrogate pair.
    """
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    values = [found]
    for _ in range(_DEEPEST):
        values = [inner for value in values for inner in _inside(value)]
        if not values:
            json.dumps(found, ensure_ascii=False).encode()
            return found
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number
