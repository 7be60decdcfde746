"""The checks of the tests and the blocks around them, with the results that each looks at."""

import ast
from collections.abc import Set

from megatron_sspo.sandbox.inside.verdict.flow import Flow, names_of
from megatron_sspo.sandbox.inside.verdict.trees import COMPREHENSIONS, TYPE_TESTS, is_empty, last_name, walk


class Site:
    """A check or a block of the tests.

    Attributes:
        keys: the program's results that the check looks at, or that the block depends on.
        covers: the program's results whose content the check compares; it excuses sites that have one of them as a key.
        blocks: the numbers of the blocks around the site.
        owner: the outermost function or class around the site.
    """

    def __init__(self, number: int, text: int, line: int, kind: str) -> None:
        self.number, self.text, self.line, self.kind = number, text, line, kind
        self.keys: Set[str] = set()
        self.covers: Set[str] = set()
        self.blocks: list[int] = []
        self.is_excused = False
        self.uses_parameters = self.uses_results = False
        self.is_real = True
        self.owner = ""
        self.num_reached = 0
        self.num_checked = 0
        self.num_empty = 0
        self.num_full = 0
        self.was_empty = False


class Sites(list[Site]):
    """All checks and blocks of a job's tests.

    Args:
        is_detailed: whether to find the results that each looks at; only the verdict on a vacuous check needs them.
    """

    def __init__(self, flow: Flow, is_detailed: bool) -> None:
        super().__init__()
        self._is_detailed = is_detailed
        self._flow = flow

    def add(self, text: int, line: int, kind: str, blocks: list[int], owner: str) -> Site:
        """Adds a check or a block."""
        site = Site(len(self), text, line, kind)
        site.blocks = list(blocks)
        site.owner = owner
        self.append(site)
        return site

    def add_results(self, site: Site, expression: ast.expr, parameters: Set[str]) -> None:
        """Records the results that a check looks at."""
        site.uses_parameters = bool(names_of(expression) & parameters)
        site.uses_results = self._flow.uses_results(expression)
        if self._is_detailed:
            site.covers = self._covers(expression)
        self.add_header_results(site, expression)

    def add_header_results(self, site: Site, expression: ast.expr) -> None:
        """Records the results that a block depends on."""
        if not self._is_detailed:
            return
        site.keys = self._keys(expression)
        site.is_excused = self._has_empty_input(expression)

    def _keys(self, expression: ast.AST) -> Set[str]:
        names = names_of(expression) & (self._flow.results | self._flow.passed) - self._flow.functions
        calls = {
            ast.unparse(part)
            for part in walk(expression)
            if isinstance(part, ast.Call) and self._flow.uses_results(part.func)
        }
        return names | calls

    def _covers(self, expression: ast.expr) -> Set[str]:
        """Returns the results whose content an assert checks, and not only their type or order."""
        match expression:
            case ast.BoolOp(op=ast.And(), values=values):
                return set().union(*map(self._covers, values))
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return self._keys_outside(left) | self._keys_outside(right)
            case ast.UnaryOp(op=ast.Not(), operand=ast.Name() | ast.Call() as operand):
                return self._keys_outside(operand) if last_name(getattr(operand, "func", operand)) != "any" else set()
            case ast.Name():
                return self._keys(expression)
            case ast.Call(func=function) if last_name(function) in ("array_equal", "allclose", "assertEqual"):
                return self._keys_outside(expression)
        return set()

    def _keys_outside(self, expression: ast.AST) -> Set[str]:
        if isinstance(expression, COMPREHENSIONS):
            return set()
        if isinstance(expression, ast.Call) and last_name(expression.func) in (*TYPE_TESTS, "all", "any", "sum"):
            return set()
        if isinstance(expression, ast.Call) and self._flow.uses_results(expression.func):
            return self._keys(expression)
        found = {expression.id} if isinstance(expression, ast.Name) and self._keys(expression) else set()
        return found.union(*map(self._keys_outside, ast.iter_child_nodes(expression)))

    def _has_empty_input(self, expression: ast.AST) -> bool:
        return any(
            isinstance(part, ast.Call)
            and self._flow.uses_results(part.func)
            and part.args
            and all(map(is_empty, part.args))
            for part in walk(expression)
        )
