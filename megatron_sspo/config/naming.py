"""Formats any value for a message: on one line and short."""

import inspect
import re
import reprlib
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from megatron_sspo.errors import escape_unprintable

_LONGEST = 80  # characters of a value

_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxlong, _repr.maxother = 3, 60, 30, _LONGEST


def describe_value(value: Any) -> str:
    """Returns the value's text for a message. Functions, classes and generators are named instead of printed."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
        return "a lambda"
    if isinstance(value, (FunctionType, BuiltinFunctionType, MethodType)):
        return f"the function {value.__name__}"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if inspect.isgenerator(value) or inspect.iscoroutine(value) or inspect.isasyncgen(value):
        return f"a {type(value).__name__.replace('_', ' ')}"
    if type(value) is int and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if type(value).__repr__ is object.__repr__:
        return f"an object of the class {type(value).__name__}"
    try:
        text = _repr.repr(value)
    except Exception:  # a user's class whose __repr__ fails
        text = f"a {type(value).__name__}"
    return shorten(without_address(text))


def without_address(text: str) -> str:
    """Returns an object's repr without its address in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def one_line(text: str) -> str:
    """Returns the text without line breaks and with unprintable characters escaped."""
    return escape_unprintable(" ".join(text.split()))


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Returns the text on one line of at most `longest` characters."""
    text = one_line(text[: 4 * longest])
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
