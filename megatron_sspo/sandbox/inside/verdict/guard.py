"""Prevents the judge from executing what the program returns, by `eval`, `doctest`, `pickle` or otherwise.

Python calls an audit hook whenever source code is compiled or a pickle looks up a class.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterable, Set

from megatron_sspo.sandbox.inside.proxies import mirror

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_EXECUTING_MODULES = ("doctest", "code", "codeop", "timeit", "runpy", "pdb", "bdb", "trace", "cProfile", "profile")
_CONSTANT_NODES = (
    *(ast.Expression, ast.Module, ast.Expr, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
# What a pickle may name. A dotted name, such as `os.system` of the module `uuid`, would reach every other module.
_PICKLE_NAMES = {
    "builtins": (
        *("set", "frozenset", "complex", "bytearray", "range", "slice", "object", "list", "dict", "int", "float"),
        *("str", "bytes", "bool", "tuple"),
    ),
    "collections": ("ChainMap", "Counter", "OrderedDict", "UserDict", "UserList", "UserString", "defaultdict", "deque"),
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "uuid": ("SafeUUID", "UUID"),
    "_codecs": ("encode",),
    "copyreg": ("__newobj__", "_reconstructor"),
    "numpy": ("dtype", "ndarray"),
    **dict.fromkeys(("numpy.core.multiarray", "numpy._core.multiarray"), ("_reconstruct", "scalar")),
    **dict.fromkeys(("numpy.core.numeric", "numpy._core.numeric"), ("_frombuffer",)),
}


def install(nodes: Iterable[ast.AST], report: Callable[[str], None]) -> None:
    """Installs the audit hook.

    Args:
        nodes: all nodes of the tests' syntax trees; a text in them may be executed.
        report: a function that is called with a message for each refusal.
    """
    is_checking = False
    texts = {node.value.strip() for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_checking
        if event == "pickle.find_class":
            module, name = arguments
            if name not in _PICKLE_NAMES.get(module, ()):
                refuse(f"a pickle with {module}.{name}")
        elif event == "compile" and not is_checking:
            is_checking = True
            try:
                allowed = _is_allowed(arguments[0], sys._getframe(1).f_globals.get("__name__", ""), texts)
            finally:
                is_checking = False
            if not allowed:
                refuse("source text that is not part of the test")

    def refuse(what: str) -> None:
        report(f"the test executes {what}")
        raise RuntimeError(f"the judge refuses to execute {what}")

    sys.addaudithook(hook)


def refuse_changes_by_pickles(report: Callable[[str], None]) -> None:
    """Makes pickle refuse to set attributes of a class, such as the `__eq__` of `Fraction`.

    The unpickler in C cannot be changed; the one in Python takes its place.
    """
    import pickle  # slow to import, and few tests use it

    python: Any = pickle
    kind = python._Unpickler
    build = kind.dispatch[pickle.BUILD[0]]

    def build_object(self: Any) -> None:
        if isinstance(self.stack[-2], (type, types.FunctionType)):
            report("the test loads a pickle that changes a class or a function")
            raise RuntimeError("the judge refuses to load a pickle that changes a class or a function")
        build(self)

    kind.dispatch[pickle.BUILD[0]] = build_object
    python.Unpickler, python.load, python.loads = kind, python._load, python._loads


def refuse_doctests(report: Callable[[str], None]) -> None:
    """Makes doctest refuse docstrings of the program, in which it would test itself."""
    import doctest  # slow to import, and few tests use it

    kind: Any = doctest.DocTestFinder
    get_test = kind._get_test

    def get_own_test(self: Any, obj: Any, *arguments: Any) -> Any:
        if mirror.handle_of(obj) is not None:
            report("the test executes a docstring of the program")
            raise RuntimeError("the judge refuses to execute a docstring of the program")
        return get_test(self, obj, *arguments)

    kind._get_test = get_own_test


def _is_allowed(source: Any, caller: str, texts: Set[str]) -> bool:
    if caller not in _EXECUTING_MODULES and caller != "tests":
        return True  # the standard library compiles code that it has generated itself
    text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
    if not isinstance(text, str):
        return False
    if text.strip() in texts or (caller != "tests" and any(text.strip() in own for own in texts)):
        return True  # a doctest example is part of a docstring
    try:
        return all(isinstance(node, _CONSTANT_NODES) for node in ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return caller == "tests"  # compiling the text raises the same error
