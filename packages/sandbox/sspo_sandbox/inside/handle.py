"""`Handle`: an object of the other process. Everything that is done with it is asked of that process.

An object of the program must not see the values that a test expects. So a handle in the tests never equals plain data,
and an operator between the two is refused, unless the object's class derives from a builtin one (a named tuple): then
its plain data takes its place. An object that the test has made itself, by calling a class of the program under a
capitalized name, is trusted with other operators than equality, as in `(Vector(1, 2) * 3).x`, until a function or a
method returns it: `abs(Solution().power(2, 10) - 1024)` must not compare with what `Solution` pretends to be.
"""

from __future__ import annotations

import collections
import copy
import math
import operator
import types
from collections.abc import Callable

from sspo_sandbox.inside.lazy import Any

READABLE = {"__name__", "__qualname__", "__module__", "__dict__", "__annotations__", "__members__"}
# Classes, and the builtin class whose data an object of a class derived from them has.
DATA: tuple[tuple[type, Any], ...] = (
    *((kind, kind) for kind in (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)),
    *((kind, dict) for kind in (collections.ChainMap, types.MappingProxyType)),
    *((type(view), set) for view in ({}.keys(), {}.items())),
)
_ORDER = ("lt", "le", "gt", "ge")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "xor", "or", "lshift", "rshift")
_UNARY: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (bool, int, float, complex, str)},
    **{function.__name__: function for function in (len, iter, next, repr, hash, abs, round, reversed, dir, format)},
    **{name: getattr(operator, name) for name in ("index", "neg", "pos", "invert")},
    **{name: getattr(math, name) for name in ("trunc", "floor", "ceil")},
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem")},
    "copy": copy.copy,
    "deepcopy": lambda value, _=None: copy.deepcopy(value),
}


def _data(value: Any) -> Any:
    """Returns the plain data of an object whose class derives from one of `DATA`."""
    base = next(base for kind, base in DATA if isinstance(value, kind))
    return base.__str__(value) if base is str else base(value)


def _of(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    return (lambda value, other: function(other, value)) if reflected else function


OPERATIONS: dict[str, Callable[..., Any]] = {
    **_UNARY,
    **{name: _of(name) for name in (*_ORDER, *_BINARY, "eq", "ne", "contains")},
    **{f"r{name}": _of(name, reflected=True) for name in _BINARY},
    **{f"i{name}": getattr(operator, f"i{name}") for name in _BINARY},
    "call": lambda value, *args, **kwargs: value(*args, **kwargs),
    **{function.__name__: function for function in (getattr, setattr, delattr, isinstance, issubclass)},
    "isinstance": lambda kind, value: isinstance(value, kind),
    "issubclass": lambda kind, value: issubclass(value, kind),
    "send": lambda generator, value: generator.send(value),
    "throw": lambda generator, *error: generator.throw(*error),
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, kind, error: type(value).__exit__(value, kind, error, None),
    "data": _data,
}


class Handle:
    """An object of the other process.

    Attributes:
        __peer__, __number__: whose object it is, and its number there.
        __base__: the class of `DATA` from which the object's class derives, or None.
        __is_class__: whether it is a class.
        __trusted__: whether operators may show the object plain data, until something else returns it.
    """

    __slots__ = ("__base__", "__is_class__", "__number__", "__peer__", "__trusted__", "__weakref__")
    __doc__ = None  # the program's would be run by doctest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in READABLE:
            raise AttributeError(name)  # numpy, for one, would take an address from __array_interface__
        if name in ("send", "throw"):  # from which StopIteration may come
            return lambda *args: ask(self, name, *args)
        return self.__peer__.named(name, ask(self, "getattr", name))

    def __setattr__(self, name: str, value: Any) -> None:
        ask(self, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        ask(self, "delattr", name)

    @property
    def __class__(self) -> Any:
        return self.__base__ or Handle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__peer__.request("call", self.__number__, args, kwargs, trusted=self.__trusted__)

    def __eq__(self, other: object) -> bool:
        if is_handle(other, self.__peer__) or not self.__peer__.is_judge:
            return self is other or ask(self, "eq", other) is True
        return self.__base__ is not None and bool(ask(self, "data") == other)

    def __ne__(self, other: object) -> bool:
        return ask(self, "ne", other) is True if is_handle(other, self.__peer__) else not self == other

    def __hash__(self) -> int:
        return ask(self, "hash")

    def __str__(self) -> str:
        return str(ask(self, "data")) if self.__base__ is str else ask(self, "str")

    def __contains__(self, item: Any) -> bool:
        if _may_see(self, item):
            return ask(self, "contains", item) is True
        items: Any = self
        return item in ask(self, "data") if self.__base__ else any(item is own or item == own for own in items)

    def __enter__(self) -> Any:
        return ask(self, "enter", trusted=self.__trusted__)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        found = bool(ask(self, "exit", kind, error))
        return found and not (self.__peer__.is_judge and isinstance(error, AssertionError))

    def __instancecheck__(self, instance: Any) -> bool:
        return is_handle(instance, self.__peer__) and bool(ask(self, "isinstance", instance))

    def __subclasscheck__(self, kind: Any) -> bool:
        return bool(ask(self, "issubclass", kind))


def is_handle(value: Any, peer: Any) -> bool:
    """Returns whether a value is an object of the other process."""
    return type(value) is Handle and value.__peer__ is peer


def ask(handle: Handle, operation: str, *args: Any, trusted: bool = False) -> Any:
    """Returns what the other process answers."""
    return handle.__peer__.request(operation, handle.__number__, args, trusted=trusted)


def _may_see(handle: Handle, other: Any) -> bool:
    """Returns whether an object of the program may see the other operand."""
    return not handle.__peer__.is_judge or handle.__trusted__ or is_handle(other, handle.__peer__)


def _binary(operation: str) -> Callable[[Handle, Any], Any]:
    def method(self: Handle, other: Any) -> Any:
        if _may_see(self, other):
            return ask(self, operation, other, trusted=self.__trusted__)
        if self.__base__ is None:
            raise TypeError(f"{operation}: an object of the program is not combined with plain data of the test")
        return OPERATIONS[operation](ask(self, "data"), other)

    return method


def _unary(operation: str) -> Callable[..., Any]:
    return lambda self, *args: ask(self, operation, *(() if operation == "deepcopy" else args))  # its memo stays here


for _name in (*_ORDER, *_BINARY, *(f"r{name}" for name in _BINARY), *(f"i{name}" for name in _BINARY)):
    setattr(Handle, f"__{_name}__", _binary(_name))
for _name in _UNARY:
    if _name != "str" and _name != "hash":
        setattr(Handle, f"__{_name}__", _unary(_name))
