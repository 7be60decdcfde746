"""Decides what the program may do with objects of the tests, so that it does not reach the expected results."""

from __future__ import annotations

import functools
import io
import types
from collections.abc import Iterator

from megatron_sspo.sandbox.inside.proxies import mirror

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_FUNCTION_ATTRIBUTES = ("__name__", "__qualname__", "__doc__", "__module__", "__dict__")
# Classes of the standard library and numpy whose objects a test passes for the program to use. None executes code, or
# reads or writes files.
_LIBRARY_CLASSES = frozenset(
    (
        *("random.Random", "queue.Queue", "queue.LifoQueue", "queue.PriorityQueue", "_queue.SimpleQueue"),
        *("_thread.lock", "_thread.RLock", "threading.Event", "threading.Condition", "threading.Semaphore"),
        *("threading.BoundedSemaphore", "threading.Barrier", "collections.UserDict", "collections.UserList"),
        *("collections.UserString", "xml.etree.ElementTree.Element", "re.Match"),
        *("numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"),
    )
)
_METHODS = (types.FunctionType, staticmethod, classmethod, functools.partialmethod)
_PROPERTIES = (property, functools.cached_property)
_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, type(None))


def is_allowed(operation: str, target: Any, rest: list[Any]) -> bool:
    """Returns whether the program may do this with an object of the tests without reaching the expected results."""
    if operation == "call":
        # the class of a bound method or of a mock, which is described with the object, would wrap other callables
        return callable(target) and (not isinstance(target, type) or _is_own(target))
    if operation in ("getattr", "setattr", "delattr"):
        name = rest[0] if rest else ""
        if not isinstance(name, str):
            return False
        if name in _FUNCTION_ATTRIBUTES and operation == "getattr":
            return name != "__dict__" or not isinstance(target, (types.FunctionType, types.ModuleType, type))
        if _is_mock(target):
            return _is_allowed_with_mock(operation, name, rest[1:])
        if operation != "getattr" and _is_method(target, name):
            return False
        return not name.startswith("__") and (_is_usable(target) or isinstance(target, io.IOBase))
    if isinstance(target, Iterator) or _is_usable(target) or _is_mock(target):
        return operation not in ("subclass", "member", "dir")
    if operation == "await":
        return isinstance(target, types.CoroutineType)
    return operation in ("str", "repr", "hash", "eq", "bool", "enter", "exit")


def _is_own(target: Any) -> bool:
    """Returns whether a class, or the class of an object, is defined by the tests."""
    kind = target if isinstance(target, type) else type(target)
    return kind.__module__ == "tests" and mirror.handle_of(kind) is None


def _is_method(target: Any, name: str) -> bool:
    """Returns whether a name is that of a method or a property, which a test may call to check a result."""
    kind = target if isinstance(target, type) else type(target)
    found = next((vars(part)[name] for part in kind.__mro__ if name in vars(part)), None)
    return isinstance(found, _METHODS) or (isinstance(found, _PROPERTIES) and target is kind)


def _is_usable(target: Any) -> bool:
    kind = type(target)
    return _is_own(target) or f"{kind.__module__}.{kind.__qualname__}" in _LIBRARY_CLASSES


def _is_mock(target: Any) -> bool:
    names = (f"{part.__module__}.{part.__qualname__}" for part in type(target).__mro__)
    return "unittest.mock.NonCallableMock" in names


def _is_allowed_with_mock(operation: str, name: str, values: list[Any]) -> bool:
    """Returns whether the program may use an attribute of a mock; those with which a test checks calls are refused."""
    import unittest.mock  # the test has imported it

    if name.startswith(("_", "assert")) or name == "method_calls" or hasattr(unittest.mock.Mock, name):
        return False
    return operation == "getattr" or (operation == "setattr" and type(values[0]) in _PLAIN)
