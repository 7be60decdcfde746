"""Parses JSON that the policy or a row has as text."""

import json
from typing import Any

from megatron_sspo.files.reading import finite_number

_DEEPEST = 64  # far from Python's limit of recursion, so that the values can be written and rendered


def decode_json(value: Any) -> Any:
    """Returns the list or object that a text spells in JSON; any other value, and any other text, as it is.

    Neither are numbers that are not finite or have thousands of digits JSON, nor values that are nested too deeply.
    """
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value, parse_float=finite_number, parse_constant=finite_number)
    except (ValueError, RecursionError):
        return value
    values = [found]
    for _ in range(_DEEPEST):
        values = [inner for value in values for inner in _inside(value)]
    return found if isinstance(found, (dict, list)) and not values else value


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
