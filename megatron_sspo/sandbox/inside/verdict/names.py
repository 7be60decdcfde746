"""The tests' global names: their own, Python's, and the program's.

A test may use a function or a module of the standard library that it does not import, since the program imports it or
has a function of the same name. If the test is about that function, the name means the program's function. So it does
if the program defines the function, unless the test judges with it: then the name means the library's function, and no
program can replace it.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
from collections.abc import Callable, Iterator

from megatron_sspo.sandbox.inside.proxies import mirror
from megatron_sspo.sandbox.inside.proxies.client import JudgeSide
from megatron_sspo.sandbox.inside.verdict.flow import Flow, names_of
from megatron_sspo.sandbox.inside.verdict.trees import last_name, walk

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
_DECODING = ("loads", "literal_eval")
_JUDGING = frozenset(  # functions that decide a check by themselves
    (
        *("isclose", "isfinite", "isinf", "isnan", "fabs", "TestCase"),
        *_LIBRARY_FUNCTIONS["numpy"],
        *_LIBRARY_FUNCTIONS["pytest"],
    )
)
_TOLERANCE = 0.1  # a value that has to be less is an error, such as `dist(f(p), q) < 1e-9`


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
        known = flow.loaded & _MODULE_OF.keys()
        # found now: the rewriter will change the tests' syntax trees
        self._under_test = {name for name in known if self._uses.is_under_test(name)}
        self._judging = {name for name in known - self._under_test if self._uses.is_judging(name)}

    def __missing__(self, name: str) -> Any:
        if name == "id":
            return mirror.identity
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
        if owner is None or name in self._under_test:
            return False, None
        if not self._judge_side.find_global(name)[0]:
            return False, None  # as in Python, a name that nothing has imported is not defined
        if name in _MODULE_OF and name not in self._judging and self._judge_side.defines(name, owner):
            return False, None
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

    def is_judging(self, name: str) -> bool:
        """Returns whether the tests judge results with the function of that name, and do not examine its own."""
        return name in _JUDGING or any(self._judges(node, name) for node in self._nodes)

    def _judges(self, node: ast.AST, name: str) -> bool:
        match node:
            case ast.Call(func=ast.Name(id=found), args=[argument, *_]) if found == name and name in _COPYING:
                return not self._flow.uses_results(argument)  # saves what the test passes to the program
            case ast.Call(func=ast.Name(id=found), args=[argument, *_]) if found == name and name in _DECODING:
                return self._calls_other(argument)
            case ast.For(iter=iterable) | ast.comprehension(iter=iterable) if _MODULE_OF[name] == "itertools":
                return _is_call_of(iterable, name)  # a loop over nothing, or over pairs that are equal, checks nothing
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[ast.Constant(value=float(limit))]):
                return limit < _TOLERANCE and _is_call_of(left, name)
            case ast.Compare(left=left, comparators=others):
                return self._expects([left, *others], name)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return self._expects([left, right], name)
            case ast.Call(func=function, args=arguments) if _judges_arguments(function):
                return self._expects(arguments, name)
        return False

    def _expects(self, sides: list[ast.expr], name: str) -> bool:
        """Returns whether the expectation for a result is computed by the function, or by it from the result too."""
        depends = [self._calls_other(side) for side in sides]
        is_expectation = any(
            not depends[place] and any(_calls_of(side, name)) and any(depends) for place, side in enumerate(sides)
        )
        if is_expectation:
            return True
        calls = [side for side in sides if _is_call_of(side, name)]
        is_applied = [bool(names_of(call) & (self._flow.functions | self._flow.results) - {name}) for call in calls]
        return len(sides) > 1 and len(calls) == len(sides) and any(is_applied) and not all(is_applied)

    def _calls_other(self, node: ast.AST) -> bool:
        """Returns whether an expression depends on a function of the program without a name of the library."""
        return not names_of(node).isdisjoint(self._others)

    @functools.cached_property
    def _others(self) -> set[str]:
        """The program's names that no library has, and those that hold what they return."""
        library = _MODULE_OF.keys() | _ALIASES.keys() | _MODULES
        pairs = list(self._flow.assignments())
        assigned = set().union(*(names_of(target) for target, _ in pairs))
        found = (self._flow.functions - library) | (self._flow.results - assigned)
        size = -1
        while size != len(found):
            size = len(found)
            found |= {name for target, value in pairs if names_of(value) & found for name in names_of(target)}
        return found & (self._flow.functions | self._flow.results)


def _is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _judges_arguments(function: ast.expr) -> bool:
    name = last_name(function)
    return name in _JUDGING or name.lower().startswith("assert")


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
