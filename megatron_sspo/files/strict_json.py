"""Parses JSON that a client, the policy or a row has as text."""

import json
from typing import Any

from megatron_sspo.files.reading import finite_number

_DEEPEST = 64  # far from Python's limit of recursion, so that the values can be written and rendered


def parse_strict_json(text: str | bytes) -> Any:
    """Returns the value of a text.

    Raises:
        ValueError: it is not JSON, has a number that is not finite or has thousands of digits, or is nested too deeply.
    """
    try:
        found = json.loads(text, parse_float=finite_number, parse_constant=finite_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    values = [found]
    for _ in range(_DEEPEST):
        values = [inner for value in values for inner in _inside(value)]
        if not values:
            return found
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def decode_json(value: Any) -> Any:
    """Returns the list or object that a text spells in JSON; any other value, and any other text, as it is."""
    if not isinstance(value, str):
        return value
    try:
        found = parse_strict_json(value)
    except ValueError:
        return value
    return found if isinstance(found, (dict, list)) else value


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
