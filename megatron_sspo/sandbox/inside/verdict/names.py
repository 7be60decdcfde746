"""The tests' global names: their own, Python's, and the program's.

A test may use a function or a module of the standard library that it does not import, since the program imports it or
has a function of the same name. If the test is about that function, the name means the program's function. If the test
only uses it to examine the result of another function, the name means the library's, and no program can replace it.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections.abc import Callable, Iterator

from megatron_sspo.sandbox.inside.proxies.client import JudgeSide
from megatron_sspo.sandbox.inside.verdict.flow import Flow, names_of
from megatron_sspo.sandbox.inside.verdict.trees import walk

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any, NoReturn

_ALIASES = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "dt": "datetime", "it": "itertools"}
_MODULES = frozenset(
    (
        *("abc", "array", "ast", "asyncio", "base64", "bisect", "calendar", "cmath", "collections", "contextlib"),
        *("copy", "csv", "datetime", "decimal", "difflib", "fractions", "functools", "hashlib", "heapq", "inspect"),
        *("io", "itertools", "json", "math", "numbers", "numpy", "operator", "os", "pandas", "pathlib", "pytest"),
        *("random", "re", "statistics", "string", "struct", "sys", "tempfile", "textwrap", "threading", "time"),
        *("types", "typing", "unittest", "uuid", "warnings", "zlib"),
    )
)
_LIBRARY_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "math": (
        *("acos", "asin", "atan", "atan2", "ceil", "comb", "cos", "dist", "exp", "fabs", "factorial", "floor", "fmod"),
        *("fsum", "gcd", "hypot", "isclose", "isfinite", "isinf", "isnan", "isqrt", "lcm", "log", "log10", "log2"),
        *("perm", "prod", "radians", "degrees", "sin", "sqrt", "tan", "trunc"),
    ),
    "itertools": (
        *("accumulate", "chain", "combinations", "combinations_with_replacement", "count", "cycle", "dropwhile"),
        *("groupby", "islice", "pairwise", "permutations", "product", "repeat", "starmap", "takewhile", "zip_longest"),
    ),
    "collections": ("ChainMap", "Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"),
    "functools": ("cmp_to_key", "lru_cache", "partial", "reduce", "wraps"),
    "operator": ("add", "attrgetter", "itemgetter", "mul", "sub", "xor"),
    "statistics": ("mean", "median", "mode", "pstdev", "pvariance", "stdev", "variance"),
    "copy": ("copy", "deepcopy"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "datetime": ("date", "datetime", "timedelta", "timezone"),
    "pathlib": ("Path", "PurePath", "PurePosixPath"),
    "json": ("dumps", "loads"),
    "ast": ("literal_eval",),
    "uuid": ("UUID",),
    "heapq": ("heapify", "heappop", "heappush", "nlargest", "nsmallest"),
    "bisect": ("bisect", "bisect_left", "bisect_right", "insort"),
    "unittest": ("TestCase",),
    "numpy": ("allclose", "array_equal", "array_equiv", "assert_allclose", "assert_array_equal", "ndarray"),
    "pytest": ("approx", "raises"),
}
_MODULE_OF = {name: module for module, names in _LIBRARY_FUNCTIONS.items() for name in names}
_CONSTANTS = {"pi": "math", "inf": "math", "nan": "math", "tau": "math"}
_COPYING = ("copy", "deepcopy")  # used to save an argument, far from where the result is examined


class Namespace(dict):
    """The tests' globals.

    Args:
        on_missing: a function that is called with each name that the program lacks, since a test may catch the error.
    """

    def __init__(self, judge_side: JudgeSide, flow: Flow, on_missing: Callable[[str], None]) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self._judge_side = judge_side
        self._on_missing = on_missing
        self._uses = _Uses(flow)

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)  # Python then uses its builtin: no program can replace `len` or `sorted`
        found, value = self._library(name)
        if not found:
            found, value = self._judge_side.find_global(name)
        if not found:
            self._on_missing(name)
            raise KeyError(name)
        self[name] = value
        return value

    def _library(self, name: str) -> tuple[bool, Any]:
        """Returns whether a name belongs to the standard library or numpy, and its value."""
        attributes = self._uses.attributes(name)
        module = _ALIASES.get(name, name)
        if module in _MODULES and attributes:
            try:
                found = importlib.import_module(module)
            except ImportError:
                if name in _ALIASES or module in ("numpy", "pytest"):
                    self._refuse(name)
                return False, None
            if all(hasattr(found, attribute) for attribute in attributes):
                return True, found
        owner = _CONSTANTS.get(name) or _MODULE_OF.get(name)
        if owner is None or (name not in _CONSTANTS and self._uses.is_under_test(name)):
            return False, None
        if not self._judge_side.find_global(name)[0]:
            return False, None  # as in Python, a name that nothing has imported is not defined
        try:
            return True, getattr(importlib.import_module(owner), name)
        except ImportError:
            self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        self._on_missing(name)
        raise KeyError(name)


class _Uses:
    """The places where the tests use names that they do not define."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._nodes = flow.nodes

    def attributes(self, name: str) -> set[str]:
        """Returns the attributes of a name that is used only for its attributes, else an empty set."""
        found = [
            node.attr
            for node in self._nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
        ]
        uses = sum(isinstance(node, ast.Name) and node.id == name for node in self._nodes)
        return set(found) if len(found) == uses else set()

    def is_under_test(self, name: str) -> bool:
        """Returns whether the tests are about the function of that name, and do not only use it."""
        others = (self._flow.functions | self._flow.results) - {name}
        if not self._flow.functions - {name}:
            return True
        return any(
            self._is_about(statement, name, others) for statement in self._nodes if isinstance(statement, ast.stmt)
        )

    def _is_about(self, statement: ast.stmt, name: str, others: set[str]) -> bool:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return False  # its statements are examined one by one
        for part in ast.iter_child_nodes(statement):
            if not isinstance(part, ast.expr):
                continue
            called = {id(node.func) for node in walk(part) if isinstance(node, ast.Call)}
            bare = [node for node in walk(part) if isinstance(node, ast.Name) and node.id == name]
            if any(id(node) not in called for node in bare) and not _is_type_test(part, name):
                return True  # passed on, as in `check(gcd)`
            for call in _calls_of(part, name):
                is_kept = isinstance(statement, ast.Assign) and name not in _COPYING
                if not names_of(call) & others and (is_kept or not names_of(part) & (others - _targets(statement))):
                    return True
        return False


def _targets(statement: ast.stmt) -> set[str]:
    return set().union(*map(names_of, statement.targets)) if isinstance(statement, ast.Assign) else set()


def _calls_of(node: ast.AST, name: str) -> Iterator[ast.Call]:
    for part in walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == name:
            yield part


def _is_type_test(node: ast.AST, name: str) -> bool:
    """Returns whether a name is used as a type in `isinstance(value, NAME)` or `issubclass(value, NAME)`."""
    inside = [
        part
        for call in walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("isinstance", "issubclass")
        for argument in call.args[1:]
        for part in walk(argument)
        if isinstance(part, ast.Name) and part.id == name
    ]
    return bool(inside)
