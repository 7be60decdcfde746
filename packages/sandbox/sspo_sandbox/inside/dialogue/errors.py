"""Exceptions as JSON. They are raised in the other process as exceptions of the same classes and bases.

A builtin exception is the same class in both processes. One of the program's is a class that is made here, with its
name and bases; its other attributes and its methods are asked of the program.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

    from sspo_sandbox.inside.dialogue.peer import Peer

_NUMBER = "__number__"  # of the exception, or the class, in the process that it comes from
_OF_TESTS = ("unittest", "_pytest", "pytest", "numpy.testing", "__main__", "solution")  # of which no class is taken


class ErrorClass(type):
    """The class of the classes of exceptions of the other process."""

    peer: Peer

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if _NUMBER not in vars(cls):  # a class of the tests that derives from one of the program's
            return super().__call__(*args, **kwargs)
        return cls.peer.request("call", vars(cls)[_NUMBER], args, kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or _NUMBER not in vars(cls):
            raise AttributeError(name)
        return cls.peer.request("getattr", vars(cls)[_NUMBER], (name,))


def is_builtin(name: str) -> bool:
    """Returns whether "builtins.NAME" is a builtin exception."""
    kind = getattr(builtins, name.removeprefix("builtins."), None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def encode_class(peer: Peer, kind: type) -> Any:
    """Returns the class of an exception that is not a builtin one."""
    if isinstance(kind, ErrorClass) and _NUMBER in vars(kind):
        return ["back", vars(kind)[_NUMBER]]
    bases = [base for base in kind.__bases__ if issubclass(base, BaseException)]
    return ["error class", peer.export(kind), kind.__module__, kind.__name__, list(map(peer.encode, bases))]


def decode_class(peer: Peer, number: int, module: str, name: str, bases: list[Any]) -> type:
    """Returns the class of that name of an imported module, or a class that stands for it."""
    if not module.startswith(_OF_TESTS):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
    if number not in peer.error_classes:
        parents = tuple(map(peer.decode, bases))
        space = {_NUMBER: number, "__module__": module, "__getattr__": _attribute, "__str__": _text, "peer": peer}
        try:
            made = ErrorClass(name, parents, space)
        except TypeError:  # bases that do not fit together, which cannot be
            made = ErrorClass(name, parents[:1] or (Exception,), space)
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
    parts = [peer.encode(part) for part in (type(error), list(args), fields, error.__cause__)]
    return ["error", peer.export(error), text, *parts]


def decode_error(peer: Peer, number: int, text: str, kind: Any, args: Any, fields: Any, cause: Any) -> BaseException:
    """Returns the exception, with its number, by which it is known when it goes back."""
    kind, args, fields = peer.decode(kind), peer.decode(args), peer.decode(fields)
    own: Any = kind
    while isinstance(own, ErrorClass):
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
