"""Decides what the program may do in the tests' process: call their functions, and use the objects that it was given.

The program's requests are checked by `allow`. An audit hook checks what a test does with a text or a pickle of the
program: `eval(f(3))` may compute with constants and nothing else.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable, Sequence

from sspo_sandbox.inside.handle import Handle
from sspo_sandbox.inside.lazy import Any

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType, type)
_FRAMES = ("gi_", "cr_", "ag_", "f_", "tb_", "co_")  # attributes that lead to the tests' variables
_NEVER = {"data", "dir", "delattr"}
_EXPRESSIONS = (
    *(ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.List, ast.Tuple, ast.Dict, ast.Set, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Load),
)
_PICKLED = ("_codecs.encode", "builtins.set", "builtins.frozenset", "builtins.bytearray", "builtins.complex")
_PICKLED_MODULES = ("collections", "datetime", "decimal", "fractions", "uuid")


class Refused(AttributeError):
    """Raised if the program asks for something that it may not do."""


def allow(operation: str, value: Any, args: Sequence[Any]) -> None:
    """Raises Refused if the program may not do this with an object of the tests."""
    if operation in _NEVER:
        raise Refused(f"the program may not use {operation} in the tests")
    if operation not in ("getattr", "setattr"):
        return
    name = args[0]
    is_function = isinstance(value, _FUNCTIONS)
    if is_function and operation == "getattr" and name in ("__name__", "__qualname__"):
        return
    is_mock = type(value).__module__ == "unittest.mock"
    if is_function or name.startswith(("_", *_FRAMES)) or (is_mock and _checks_mock(name)):
        raise Refused(f"the program may not use the attribute {name!r} of an object of the tests")
    if operation == "setattr" and (not _is_field(value, name) or (is_mock and type(args[1]) is Handle)):
        raise Refused(f"the program may not replace {name!r} of an object of the tests")


def _checks_mock(name: str) -> bool:
    from unittest import mock

    return hasattr(mock.NonCallableMock, name) and name not in ("return_value", "side_effect")


def _is_field(value: Any, name: str) -> bool:
    """Returns whether a class has no method or other code of that name, which an attribute would replace."""
    found = inspect.getattr_static(type(value), name, None)
    return not hasattr(type(found), "__get__") or hasattr(type(found), "__set__")


def watch_texts(tests: Sequence[str], report: Callable[[str], object]) -> None:
    """Refuses to execute texts and pickles that are not the tests' own: the program may have written them."""

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "compile" and isinstance(args[0], (str, bytes)):
            text = args[0] if isinstance(args[0], str) else args[0].decode(errors="replace")
            caller = sys._getframe(1).f_globals.get("__name__")
            if caller == "__main__" and not (
                _computes(text) or any(f"{quote}{text}{quote}" in test for quote in "'\"" for test in tests)
            ):
                refuse(f"a test executes a text that is not its own: {text[:100]!r}")
        elif event == "pickle.find_class":
            module, name = args
            if f"{module}.{name}" not in _PICKLED and (module not in _PICKLED_MODULES or "." in name):
                refuse(f"a test loads a pickle with {module}.{name}")

    def refuse(reason: str) -> None:
        report(reason)
        raise RuntimeError(reason)

    sys.addaudithook(watch)


def _computes(text: str) -> bool:
    """Returns whether a text is an expression of constants."""
    try:
        return all(isinstance(node, _EXPRESSIONS) for node in ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
