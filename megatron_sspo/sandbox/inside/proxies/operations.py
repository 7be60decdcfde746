"""The operations that one process can request from the other."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import math
import operator
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_loop: list[Any] = []


def _run(awaitable: Any) -> Any:
    """Runs an awaitable to its end, on an event loop that all awaitables share.

    An awaitable of one side may await one of the other side, and so on. Then this side's outer loop is suspended.
    """
    import asyncio  # slow to import, and few programs need it

    async def wait() -> Any:
        return await awaitable

    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        if not _loop:
            _loop.append(asyncio.new_event_loop())
            if outer is None:
                asyncio.set_event_loop(_loop[0])
        if not _loop[0].is_running():
            return _loop[0].run_until_complete(wait())
        with contextlib.closing(asyncio.new_event_loop()) as inner:
            return inner.run_until_complete(wait())
    finally:
        asyncio._set_running_loop(outer)


def _member(owner: type, name: str, value: Any) -> Any:
    """Returns an attribute that a class or one of its bases defines, bound to a value, as `super()` does."""
    for kind in owner.__mro__:
        if name in vars(kind):
            found = vars(kind)[name]
            return found.__get__(value, type(value)) if hasattr(found, "__get__") else found
    raise AttributeError(name)


def _subclass(name: str, bases: list[type], functions: dict[str, Any], rest: dict[str, Any], keywords: Any) -> type:
    """Makes a class whose methods are functions of the other side."""

    def method(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: function(*arguments, **named)

    namespace = {**rest, **{key: method(function) for key, function in functions.items()}}
    metaclass = type(bases[0])
    return metaclass(name, tuple(bases), namespace, **keywords)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *arguments, **keywords: function(*arguments, **keywords),
    **{name: getattr(builtins, name) for name in ("getattr", "setattr", "delattr", "len", "iter", "next", "str")},
    **{name: getattr(builtins, name) for name in ("repr", "int", "float", "bool", "abs", "complex", "hash", "dir")},
    **{name: getattr(builtins, name) for name in ("reversed", "round", "divmod", "format", "isinstance", "bytes")},
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem", "neg", "pos", "invert", "index")},
    **{name: getattr(operator, name) for name in ("eq", "lt", "le", "gt", "ge", "contains", "add", "sub", "mul")},
    **{name: getattr(operator, name) for name in ("truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "matmul")},
    **{name: getattr(operator, name) for name in ("lshift", "rshift", "iadd", "isub", "imul", "itruediv", "ifloordiv")},
    **{name: getattr(operator, name) for name in ("imod", "ipow", "imatmul", "iand", "ior", "ixor", "ilshift")},
    "irshift": operator.irshift,
    **{name: getattr(math, name) for name in ("trunc", "floor", "ceil")},
    "fspath": lambda value: value.__fspath__(),
    "copy": lambda value: importlib.import_module("copy").copy(value),
    "deepcopy": lambda value: importlib.import_module("copy").deepcopy(value),
    "missing": lambda value, key: type(value).__missing__(value, key),
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, *error: type(value).__exit__(value, *(*error, None)[:3]),
    "send": lambda value, item: value.send(item),
    "throw": lambda value, error, *rest: value.throw(error if not rest or rest[0] is None else rest[0]),
    "close": lambda value: value.close(),
    "await": _run,
    "aiter": builtins.aiter,
    "anext": lambda value: _run(type(value).__anext__(value)),
    "aenter": lambda value: _run(type(value).__aenter__(value)),
    "aexit": lambda value, *error: _run(type(value).__aexit__(value, *(*error, None)[:3])),
    "member": _member,
    "subclass": _subclass,
}
# The operations that may end an iteration, each with the exception that does so.
STOPPING: dict[str, type[Exception]] = {
    "next": StopIteration,
    "send": StopIteration,
    "throw": StopIteration,
    "anext": StopAsyncIteration,
}
