"""Values as JSON: plain data by value, containers by number and content, everything else as a numbered handle."""

from __future__ import annotations

import importlib
import operator
import sys
from types import ModuleType, NoneType

from sspo_sandbox.inside.common.wire import Broken
from sspo_sandbox.inside.dialogue import errors
from sspo_sandbox.inside.dialogue.handle import Handle
from sspo_sandbox.inside.dialogue.shared import CONTAINERS, is_array, make_array

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

    from sspo_sandbox.inside.dialogue.peer import Peer

_LARGE = 1 << 1000  # an integer that JSON's decimal digits would be slow for, or too long
_IMMUTABLE = {"tuple": tuple, "frozenset": frozenset}
# Immutable classes that are copied by their constructor's arguments.
_COPIED = {
    *("builtins.complex", "builtins.range", "builtins.slice", "decimal.Decimal", "fractions.Fraction", "uuid.UUID"),
    *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
    *("pathlib.PosixPath", "pathlib.PurePosixPath", "zoneinfo.ZoneInfo"),
}
_PLAIN_CLASSES = {
    *(f"builtins.{kind.__name__}" for kind in (bool, int, float, str, bytes, NoneType, object, tuple, frozenset)),
    *(f"{kind.__module__}.{kind.__name__}" for kind in CONTAINERS.values()),
    *_COPIED,
}


def encode(peer: Peer, value: Any) -> Any:
    """Returns a value as JSON. Containers are announced to `peer.shared`, which sends their content."""
    kind = type(value)
    if kind in (NoneType, bool, float, str):
        return value
    if kind is int:
        return value if -_LARGE < value < _LARGE else ["int", hex(value)]
    if _IMMUTABLE.get(kind.__name__) is kind:
        return [kind.__name__, [encode(peer, item) for item in value]]
    if kind is bytes:
        return ["bytes", value.hex()]
    if CONTAINERS.get(kind.__name__) is kind or is_array(value):
        return ["shared", peer.shared.number(value)]
    if kind is Handle and value.__peer__ is peer:
        return ["back", value.__number__]
    name = full_name(kind)
    if name in _COPIED:
        return ["copied", name, [encode(peer, part) for part in _arguments(value, kind)]]
    if isinstance(value, BaseException):
        return errors.encode_error(peer, value)
    if isinstance(value, type):
        return encode_class(peer, value)
    if peer.is_judge and isinstance(value, ModuleType):
        return ["module", value.__name__]
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject:
        return ["scalar", value.dtype.str, value.tobytes().hex()]
    if peer.is_judge and (name := _library_name(value)):
        return ["library", *name]
    return peer.encode_object(value)


def encode_class(peer: Peer, kind: type) -> Any:
    """Returns a class: one of Python's own by its name, an exception with its bases, any other as a handle."""
    name = full_name(kind)
    if name in _PLAIN_CLASSES or (issubclass(kind, BaseException) and kind.__module__ == "builtins"):
        return ["class", name]
    if issubclass(kind, BaseException):
        return errors.encode_class(peer, kind)
    if peer.is_judge and (found := _library_name(kind)):
        return ["library", *found]
    return peer.encode_object(kind)


def decode(peer: Peer, message: Any) -> Any:
    """Returns the value of a message. It executes nothing that the message names, and refuses other forms."""
    if not isinstance(message, list):
        return message
    match message:
        case ["int", text]:
            return int(text, 16)
        case ["tuple" | "frozenset" as name, items]:
            return _IMMUTABLE[name]([decode(peer, item) for item in items])
        case ["bytes", text]:
            return bytes.fromhex(text)
        case ["shared", number]:
            return peer.shared.containers[number][0]
        case ["back", number]:
            return peer.own[number]
        case ["object", number, base, flavour]:
            return peer.handle(number, base, flavour)
        case ["copied", name, arguments] if name in _COPIED:
            return _class(name)(*(decode(peer, part) for part in arguments))
        case ["class", name] if name in _PLAIN_CLASSES or errors.is_builtin(name):
            return _class(name)
        case ["error", *rest]:
            return errors.decode_error(peer, *rest)
        case ["error class", *rest]:
            return errors.decode_class(peer, *rest)
        case ["scalar", dtype, content]:
            return make_array(peer, dtype, [], content)[()]
        case ["module", name] if not peer.is_judge:
            return importlib.import_module(name)
        case ["library", module, name] if not peer.is_judge:  # the program's own function of that name
            return operator.attrgetter(name)(importlib.import_module(module))
    raise Broken("a message has no known form")


def full_name(kind: type) -> str:
    """Returns the module and the name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _class(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return NoneType if last == "NoneType" else getattr(importlib.import_module(module), last)


def _library_name(value: Any) -> tuple[str, str] | None:
    """Returns the module and the name of a function or a class of an imported module; the tests' own have none."""
    owner = getattr(value, "__objclass__", None)  # of a method such as str.upper
    module = getattr(value, "__module__", None) or getattr(owner, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module in ("__main__", "solution"):
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except (KeyError, AttributeError):
        return None
    return (module, name) if found is value else None


def _arguments(value: Any, kind: type) -> tuple[Any, ...]:
    """Returns the arguments of a constructor that makes an equal value."""
    match kind.__name__:
        case "complex":
            return value.real, value.imag
        case "UUID":
            return (str(value),)
        case "ZoneInfo":
            return (value.key,)
    parts = value.__reduce__()[1]
    if kind.__name__ in ("datetime", "time") and len(parts) == 2 and full_name(type(parts[1])) not in _COPIED:
        return parts[0], _class("datetime.timezone")(value.utcoffset())  # a zone of a class of the program
    return parts
