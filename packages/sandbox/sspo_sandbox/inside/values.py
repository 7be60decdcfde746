"""Values as JSON: plain data by value, containers by number and content, everything else as a numbered handle.

An exception is raised in the other process as one of the same class and bases. A builtin one is the same class in both
processes. One of the program's is a class that is made here, with its name and bases; its other attributes and its
methods are asked of the program.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from types import ModuleType, NoneType

from sspo_sandbox.inside.handle import Handle
from sspo_sandbox.inside.lazy import TYPE_CHECKING, Any
from sspo_sandbox.inside.shared import CONTAINERS, is_array, make_array
from sspo_sandbox.inside.wire import Broken

if TYPE_CHECKING:
    from sspo_sandbox.inside.peer import Peer

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
_NUMBER = "__number__"  # of the exception, or the class, in the process that it comes from
_OF_TESTS = ("unittest", "_pytest", "pytest", "numpy.testing", "__main__", "solution")  # of which no class is taken


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
        return encode_error(peer, value)
    if isinstance(value, type):
        return encode_class(peer, value)
    if peer.is_judge and isinstance(value, ModuleType):
        return ["module", value.__name__]
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject:
        return ["scalar", value.dtype.str, value.tobytes().hex()]
    return peer.encode_object(value)


def encode_class(peer: Peer, kind: type) -> Any:
    """Returns a class: one of Python's own by its name, an exception with its bases, any other as a handle."""
    name = full_name(kind)
    if name in _PLAIN_CLASSES or (issubclass(kind, BaseException) and kind.__module__ == "builtins"):
        return ["class", name]
    if issubclass(kind, BaseException):
        return _encode_error_class(peer, kind)
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
        case ["object", number, base, is_class]:
            return peer.handle(number, base, is_class)
        case ["copied", name, arguments] if name in _COPIED:
            return _class(name)(*(decode(peer, part) for part in arguments))
        case ["class", name] if name in _PLAIN_CLASSES or _is_builtin(name):
            return _class(name)
        case ["error", *rest]:
            return _decode_error(peer, *rest)
        case ["error class", *rest]:
            return _decode_error_class(peer, *rest)
        case ["scalar", dtype, content]:
            return make_array(peer, dtype, [], content)[()]
        case ["module", name] if not peer.is_judge:
            return importlib.import_module(name)
    raise Broken("a message has no known form")


def full_name(kind: type) -> str:
    """Returns the module and the name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _class(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return NoneType if last == "NoneType" else getattr(importlib.import_module(module), last)


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


# ------------------------------------------------------------------ exceptions


def _is_builtin(name: str) -> bool:
    """Returns whether "builtins.NAME" is a builtin exception."""
    kind = getattr(builtins, name.removeprefix("builtins."), None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _encode_error_class(peer: Peer, kind: type) -> Any:
    """Returns the class of an exception that is not a builtin one."""
    if _NUMBER in vars(kind):
        return ["back", vars(kind)[_NUMBER]]
    bases = [base for base in kind.__bases__ if issubclass(base, BaseException)]
    own = [encode(peer, base) for base in bases]
    return ["error class", peer.export(kind), kind.__module__, kind.__name__, own]


def _decode_error_class(peer: Peer, number: int, module: str, name: str, bases: list[Any]) -> type:
    """Returns the class of that name of an imported module, or a class that stands for it."""
    if not module.startswith(_OF_TESTS):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
    if number not in peer.error_classes:
        parents = tuple(decode(peer, base) for base in bases)
        space = {_NUMBER: number, "__module__": module, "__getattr__": _attribute, "__str__": _text, "peer": peer}
        try:
            made = type(name, parents, space)
        except TypeError:  # bases that do not fit together, which cannot be
            made = type(name, parents[:1] or (Exception,), space)
        peer.error_classes[number] = made
    return peer.error_classes[number]


def encode_error(peer: Peer, error: BaseException) -> Any:
    """Returns an exception with its arguments, attributes and cause."""
    if (number := vars(error).get(_NUMBER)) is not None:
        return ["back", number]
    args = error.args
    if isinstance(error, OSError) and error.filename is not None:
        args = error.errno, error.strerror, error.filename
    fields = {name: value for name, value in vars(error).items() if isinstance(name, str)}
    try:
        text = str(error)
    except BaseException:  # of the program's own __str__
        text = ""
    parts = [encode(peer, part) for part in (type(error), list(args), fields, error.__cause__)]
    return ["error", peer.export(error), text, *parts]


def _decode_error(peer: Peer, number: int, text: str, kind: Any, args: Any, fields: Any, cause: Any) -> BaseException:
    """Returns the exception, with its number, by which it is known when it goes back."""
    kind, args, fields = peer.decode(kind), peer.decode(args), peer.decode(fields)
    own: Any = kind
    while _NUMBER in vars(own):
        own = own.__base__  # the base whose form of objects it has
    made: Any
    try:
        made = own.__new__(kind, *args)
        own.__init__(made, *args)
    except Exception:
        made = own.__new__(kind)
        made.args = tuple(args)
    for name, value in fields.items():
        if name == "__notes__" or not name.startswith("__"):  # numpy would take an address from __array_interface__
            vars(made)[name] = value
    vars(made)[_NUMBER], vars(made)["__text__"] = number, text
    made.__cause__ = peer.decode(cause)
    return made


def _attribute(self: BaseException, name: str) -> Any:
    if (name.startswith("__") and name.endswith("__")) or _NUMBER not in vars(self):
        raise AttributeError(name)
    return type(self).peer.request("getattr", vars(self)[_NUMBER], (name,))  # pyright: ignore


def _text(self: BaseException) -> str:
    return vars(self)["__text__"] if "__text__" in vars(self) else BaseException.__str__(self)
