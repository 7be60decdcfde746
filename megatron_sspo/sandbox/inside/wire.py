"""Values between the judge and the program that it judges: plain data as JSON, everything else as a numbered handle.

Nothing that arrives is ever executed: what the program sends is either data of Python's own types or a number.
"""

import contextlib
import importlib
import json
import os
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

_LONGEST = 64 * 1024**2  # bytes of a message
_EXACT = 2**53  # a larger integer travels in hexadecimal, which takes linear time to read
_DTYPE = re.compile(r"[<>|=][biufcU]\d{1,4}")

# Types of the standard library that pass by value: what builds them again.
_REBUILT: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "decimal.Decimal": lambda value: (str(value),),
    "collections.deque": lambda value: (list(value),),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "datetime.datetime": lambda value: (*value.timetuple()[:6], value.microsecond),
}


class Broken(BaseException):
    """The other side is gone, or sent what is no message."""


def write(descriptor: int, message: Any) -> None:
    """Sends one message."""
    content = json.dumps(message).encode()
    if len(content) > _LONGEST:
        raise ValueError(f"a value of {len(content)} bytes is too large to be passed on")
    rest = memoryview(struct.pack("<I", len(content)) + content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BrokenPipeError as error:
            raise Broken("the program has ended") from error


def read(descriptor: int) -> Any:
    """Receives one message."""
    (size,) = struct.unpack("<I", _read_exactly(descriptor, 4))
    if size > _LONGEST:
        raise Broken("a message is too long")
    try:
        return json.loads(_read_exactly(descriptor, size))
    except (ValueError, RecursionError) as error:
        raise Broken("a message is no JSON") from error


def _read_exactly(descriptor: int, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = os.read(descriptor, min(1 << 20, size - len(content)))
        if not piece:
            raise Broken("the program has ended")
        content += piece
    return bytes(content)


def encode(value: Any, other: Callable[[Any], list[Any]]) -> Any:
    """A value as JSON. A list's first item says what it is.

    Args:
        other: encodes what is no plain data.
    """
    if value is None or isinstance(value, (bool, str, float)):
        return value
    if isinstance(value, int):
        return int(value) if -_EXACT < value < _EXACT else ["int", hex(value)]
    if isinstance(value, (list, tuple, set, frozenset)):
        tag = next(kind.__name__ for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
        return [tag, *(encode(item, other) for item in value)]
    if isinstance(value, dict):
        return ["dict", *(encode(part, other) for item in dict.items(value) for part in item)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes" if isinstance(value, bytes) else "bytearray", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, range):
        return ["range", *(encode(part, other) for part in (value.start, value.stop, value.step))]
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _REBUILT:
        return ["rebuilt", name, *(encode(part, other) for part in _REBUILT[name](value))]
    if kind.__module__ == "numpy" and hasattr(value, "tolist") and _DTYPE.fullmatch(value.dtype.str):
        content = encode(value.tolist(), other)
        return ["array", value.dtype.str, content] if kind.__name__ == "ndarray" else content
    return other(value)


def decode(message: Any, other: Callable[[list[Any]], Any]) -> Any:
    """The value that `encode` made a message of.

    Args:
        other: decodes what is no plain data.
    """
    if not isinstance(message, list):
        return message
    tag, *parts = message
    if tag in ("list", "tuple", "set", "frozenset"):
        kind = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[tag]
        return kind(decode(part, other) for part in parts)
    if tag == "dict":
        items = [decode(part, other) for part in parts]
        return dict(zip(items[::2], items[1::2], strict=True))
    if tag == "int":
        return int(parts[0], 16)
    if tag in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[tag].fromhex(parts[0])
    if tag == "complex":
        return complex(parts[0], parts[1])
    if tag == "range":
        return range(*(decode(part, other) for part in parts))
    if tag == "rebuilt" and parts[0] in _REBUILT:
        module, _, name = parts[0].rpartition(".")
        return getattr(importlib.import_module(module), name)(*(decode(part, other) for part in parts[1:]))
    if tag == "array" and _DTYPE.fullmatch(parts[0]):
        return importlib.import_module("numpy").array(decode(parts[1], other), dtype=parts[0])
    return other(message)


def close_all_but(kept: set[int]) -> None:
    """Closes every other file descriptor of this process."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the one that listed the folder
                os.close(int(name))


def hide_from_relatives() -> None:
    """Takes this process's memory and file descriptors out of the reach of others of the same user.

    The kernel then refuses ptrace, /proc/PID/mem and /proc/PID/fd (PR_SET_DUMPABLE, prctl(2)).
    """
    import ctypes

    pr_set_dumpable = 4  # linux/prctl.h
    if ctypes.CDLL(None).prctl(pr_set_dumpable, 0, 0, 0, 0) != 0:
        sys.exit("the judge cannot be hidden from the program")
