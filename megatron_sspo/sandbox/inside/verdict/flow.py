"""Finds the names in the tests that hold results of the program, without running the tests."""

import ast
import builtins
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence, Set

from megatron_sspo.sandbox.inside.verdict.trees import walk

_ASSIGNING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension)
_ASSIGNING += (ast.withitem,)
_BINDING = (ast.Name, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg, ast.ExceptHandler, ast.MatchAs)
_BINDING += (ast.MatchStar, ast.Import, ast.ImportFrom)
_PLAIN_TYPES = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, Counter)
# Attributes of arrays, fractions, decimals, times and matches, which functions return too.
_LIBRARY_ATTRIBUTES = (
    *("shape", "dtype", "ndim", "size", "T", "tolist", "item", "astype", "reshape", "ravel", "flatten", "transpose"),
    *("sum", "prod", "mean", "std", "var", "min", "max", "argmin", "argmax", "all", "any", "round", "dot", "trace"),
    *("diagonal", "squeeze", "nonzero", "cumsum", "cumprod", "nbytes", "itemsize", "tobytes", "flat"),
    *("limit_denominator", "quantize", "normalize", "as_tuple", "is_nan", "year", "month", "day", "hour", "minute"),
    *("second", "microsecond", "days", "seconds", "total_seconds", "weekday", "isoformat", "timestamp", "tzinfo"),
    *("group", "groups", "groupdict", "span"),
)
_PLAIN_ATTRIBUTES = frozenset((*_LIBRARY_ATTRIBUTES, *(name for kind in _PLAIN_TYPES for name in dir(kind))))

_READING_ERRORS = ("exception", "excepthook", "add_done_callback", "return_exceptions")


class Flow:
    """The names of all tests together, which share one namespace.

    Attributes:
        free: names that the tests read and do not bind.
        functions: names of functions of the program, or of functions of the tests that call them.
        results: names that hold values which the program returned.
        in_place: names passed to the program by a statement that is only a call, so they may hold its results.
        passed: names that are passed to the program.
        class_names: names of functions whose results are used as objects of a class, not as plain data.
        defined: functions of the tests, by name.
        nodes: all nodes of the tests' syntax trees.
        reads_errors: whether the tests look at exceptions of tasks or threads, without handlers.
    """

    def __init__(self, trees: Sequence[ast.Module]) -> None:
        self.nodes = [node for tree in trees for node in walk(tree)]
        self._assigning = [node for node in self.nodes if isinstance(node, _ASSIGNING)]
        self._calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self._statements = [n.value for n in self.nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
        self.defined = {
            node.name: node for node in self.nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        self.reads_errors = any(
            getattr(node, "attr", "") in _READING_ERRORS or getattr(node, "arg", "") in _READING_ERRORS
            for node in self.nodes
        )
        self.bound = set(_bound([node for node in self.nodes if isinstance(node, _BINDING)]))
        self.loaded = {n.id for n in self.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        self.free = {name for name in _free(trees) if not hasattr(builtins, name)}
        self.functions = set(self.free)
        self._imported = set(_imported_from_solution(self.nodes))
        self.functions |= self._imported
        self.results: set[str] = set()
        self.in_place: set[str] = set()
        self.passed: set[str] = set()
        while self._propagate():
            pass
        self.class_names = set(self._class_names())

    def assignments(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yields each target that the tests assign to, and the expression of its value."""
        for node in self._assigning:
            yield from _assignments(node)

    def _propagate(self) -> bool:
        before = len(self.functions), len(self.results), len(self.passed)
        for target, value in self.assignments():
            if self.uses_results(value):
                self.results |= names_of(target)
        for function in self.defined.values():
            if function.name not in self.functions and self._calls_program(function):
                self.functions.add(function.name)
        for call in self._calls:
            self._propagate_call(call)
        for call in self._statements:
            if self.uses_results(call.func):
                self.in_place |= {arg.id for arg in call.args if isinstance(arg, ast.Name)} & self.bound
        return before != (len(self.functions), len(self.results), len(self.passed))

    def _class_names(self) -> Iterator[str]:
        makers: dict[str, set[str]] = {}
        for target, value in self.assignments():
            if isinstance(target, ast.Name) and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                makers.setdefault(target.id, set()).add(value.func.id)
        for node in self.nodes:
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute not in _PLAIN_ATTRIBUTES:
                    yield from makers.get(name, ())
                case ast.Attribute(value=ast.Call(func=ast.Name(id=name)), attr=attribute):
                    if attribute not in _PLAIN_ATTRIBUTES:
                        yield name

    def _calls_program(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        decorated = any(map(self.uses_results, function.decorator_list))
        return decorated or any(isinstance(part, ast.Call) and self.uses_results(part.func) for part in walk(function))

    def _propagate_call(self, call: ast.Call) -> None:
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if self.uses_results(call.func):
            self.passed |= {arg.id for arg in arguments if isinstance(arg, ast.Name)}
        function = self.defined.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if function is None:
            return
        parameters = function.args.posonlyargs + function.args.args
        pairs = [*zip(call.args, (parameter.arg for parameter in parameters), strict=False)]
        pairs += [(keyword.value, keyword.arg) for keyword in call.keywords if keyword.arg]
        for argument, name in pairs:
            if isinstance(argument, (ast.Name, ast.Lambda)) and names_of(argument) & self.functions:
                self.functions.add(name)
            elif self.uses_results(argument):
                self.results.add(name)

    def is_function(self, called: ast.expr) -> bool:
        """Returns whether a test calls a name or a method of the program as a function, and not as a class."""
        match called:
            case ast.Name(id=name):
                return (
                    name in self.free | self._imported
                    and name not in self.class_names
                    and not name.lstrip("_")[:1].isupper()
                )
            case ast.Attribute(value=value, attr=name) if not name.startswith(("assert", "raises")):
                return self.uses_results(value) and not name.lstrip("_")[:1].isupper()
        return False

    def uses_results(self, node: ast.AST) -> bool:
        """Returns whether an expression depends on what the program computes."""
        names = names_of(node)
        return not (names.isdisjoint(self.functions) and names.isdisjoint(self.results))

    def uses_results_or_changed(self, node: ast.AST) -> bool:
        """Returns whether an expression depends on what the program computes or may have changed."""
        return self.uses_results(node) or not names_of(node).isdisjoint(self.in_place)

    def uses_results_or_passed(self, node: ast.AST) -> bool:
        """Returns whether an expression depends on what the program computes, or on what is passed to it."""
        return self.uses_results(node) or not names_of(node).isdisjoint(self.passed)

    def compares_length(self, indices: ast.Call) -> bool:
        """Returns whether the tests compare the length of a value, given `range(len(value))` or `enumerate(value)`."""
        argument = ast.unparse(indices.args[0]) if indices.args else ""
        length = argument if argument.startswith("len(") else f"len({argument})"
        equations = [n for n in self.nodes if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq)]
        return any(ast.unparse(side) == length for node in equations for side in (node.left, *node.comparators))


_names: dict[ast.AST, frozenset[str]] = {}


def names_of(node: ast.AST) -> frozenset[str]:
    """Returns the names in a node of a syntax tree."""
    found = _names.get(node)
    if found is None:
        found = frozenset(part.id for part in walk(node) if isinstance(part, ast.Name))
        _names[node] = found
    return found


def _assignments(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield target, value
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            yield target, value
        case ast.comprehension(target=target, iter=value):
            yield target, value
        case ast.withitem(optional_vars=target, context_expr=value) if target is not None:
            yield target, value


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name) if name:
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in names)


def _free(trees: Iterable[ast.Module]) -> set[str]:
    """Returns the names that tests read where nothing of theirs binds them, as `f` in `def check(f): ...; check(f)`."""
    found: set[str] = set()
    shared: set[str] = set()  # names that are bound outside of functions
    waiting: list[tuple[ast.AST, Set[str], bool]] = [(tree, frozenset(), False) for tree in trees]
    while waiting:
        node, local, is_inside = waiting.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name not in local:
                found.add(name)
            case ast.Global(names=names):
                shared.update(names)
        if not is_inside and not isinstance(node, ast.arg):
            shared.update(_bound([node]))
        parts = [(part, local, is_inside) for part in ast.iter_child_nodes(node)]
        match node:
            case ast.FunctionDef(args=arguments, body=body) | ast.AsyncFunctionDef(args=arguments, body=body):
                inner = local | _own(arguments, body)
                outside = [(part, local, is_inside) for part in (arguments, *node.decorator_list)]
                parts = [*outside, *((part, inner, True) for part in body)]
            case ast.Lambda(args=arguments, body=body):
                parts = [(arguments, local, is_inside), (body, local | _own(arguments, [body]), True)]
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                own = frozenset().union(*(names_of(part.target) for part in node.generators))
                parts = [(part, local | own, True) for part, *_ in parts]
        waiting += parts
    return found - shared


def _own(arguments: ast.arguments, body: Sequence[ast.AST]) -> set[str]:
    """Returns the names that a function binds, and those that the functions in it bind."""
    return set(_bound(part for node in (arguments, *body) for part in walk(node)))


def _imported_from_solution(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.ImportFrom(module="solution", names=names):
                yield from (alias.asname or alias.name for alias in names)
            case ast.Import(names=names):
                yield from (alias.asname or "solution" for alias in names if alias.name == "solution")
