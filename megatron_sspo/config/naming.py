"""Formats any value for a message: on one line and short."""

import re
import reprlib
from typing import Any

from megatron_sspo.errors import escape_unprintable

_LONGEST = 80  # characters of a value

_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxlong, _repr.maxother = 3, 60, 30, _LONGEST


def describe_value(value: Any) -> str:
    """Returns the value's text for a message. Functions and classes are named instead of printed."""
    if isinstance(value, type) or hasattr(value, "__code__"):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
    try:
        return shorten(without_address(_repr.repr(value)))
    except Exception:  # a user's class whose __repr__ fails
        return f"a {type(value).__name__}"


def without_address(text: str) -> str:
    """Returns an object's repr without its address in memory, which an image of Pillow's has in capitals."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def one_line(text: str) -> str:
    """Returns the text without line breaks and with unprintable characters escaped."""
    return escape_unprintable(" ".join(text.split()))


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Returns the text on one line of at most `longest` characters."""
    text = one_line(text[: 4 * longest])
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
