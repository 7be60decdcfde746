"""Counts the items that a check looks at: `all(x > 0 for x in got)` proves nothing if the list is empty."""

import ast
from collections.abc import Sequence

from megatron_sspo.sandbox.inside.verdict.flow import Flow, names_of
from megatron_sspo.sandbox.inside.verdict.sites import Site
from megatron_sspo.sandbox.inside.verdict.trees import COMPREHENSIONS, delayed, last_name, record_call, walk

_ITERATING_FUNCTIONS = (
    "map",
    "filter",
    "enumerate",
    "sorted",
    "list",
    "set",
    "tuple",
    "frozenset",
    "iter",
    "reversed",
    "zip",
    "len",
)
_ARRAY_REDUCTIONS = ("all", "any", "sum", "norm", "alltrue", "max", "min", "mean")
_ARRAY_REDUCTIONS += ("count_nonzero", "flatnonzero", "nonzero", "argwhere", "nansum")
_ARRAY_COMPARISONS = ("allclose", "array_equiv", "isclose", "assert_allclose", "assert_array_equal", "assert_equal")
_ARRAY_COMPARISONS += ("assert_almost_equal", "assert_array_almost_equal", "assert_array_less")
_ARRAY_COMPARISONS += ("assert_array_almost_equal_nulp", "assert_array_max_ulp")
_SUBSET_METHODS = ("issubset", "difference", "intersection", "isdisjoint")
_SETS = ("set", "frozenset")


class ItemCounter(ast.NodeTransformer):
    """Rewrites the expressions of checks, so that their items are counted."""

    _flow: Flow
    _check: Site | None  # the check whose condition is being rewritten

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "__name__" and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Constant("__main__"), node)
        return node  # at once, since most nodes are names and constants

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_function = self._flow.is_function(node.func)
        rewritten = self._rewrite_call(node)
        if is_function and rewritten is node:
            node.func = self._wrap(node.func, "function")
        return rewritten

    def _rewrite_call(self, node: ast.Call) -> ast.AST:
        name = last_name(node.func)
        if name in ("assertIs", "assertIsNot") and not any(isinstance(arg, ast.Starred) for arg in node.args):
            self.generic_visit(node)
            node.args[:2] = [self._wrap(argument, "same") for argument in node.args[:2]]
            return node
        if name in ("zip", "map") and isinstance(node.func, ast.Name) and not node.keywords:
            first = 1 if name == "map" else 0  # the function of `map`
            flags = [self._flow.uses_results_or_changed(argument) for argument in node.args[first:]]
            if any(flags) and not all(flags) and not any(isinstance(arg, ast.Starred) for arg in node.args):
                self.generic_visit(node)
                known = ast.Tuple([ast.Constant(flag) for flag in flags], ast.Load())
                return ast.copy_location(record_call(name, known, *node.args), node)
        if self._check is not None and node.args:
            if (
                name in _ARRAY_COMPARISONS
                and len(node.args) > 1
                and not any(isinstance(a, ast.Starred) for a in node.args)
            ):
                self.generic_visit(node)
                node.args[:2] = [ast.Starred(record_call("check_emptiness", *node.args[:2]), ast.Load())]
                return node
            if name in ("all", "any") or (isinstance(node.func, ast.Attribute) and name in _ARRAY_REDUCTIONS):
                return self._count_argument(node)
            if (
                name in _SUBSET_METHODS
                and isinstance(node.func, ast.Attribute)
                and self._flow.uses_results_or_changed(node.func.value)
            ):
                self.generic_visit(node)
                node.func.value = self._wrap(node.func.value, "count_size")
                return node
            if name == "issuperset" and self._flow.uses_results_or_changed(node.args[0]):
                self.generic_visit(node)
                node.args[0] = self._wrap(node.args[0], "count_size")
                return node
        elif self._check is not None and isinstance(node.func, ast.Attribute) and name in _ARRAY_REDUCTIONS:
            is_counted = self._flow.uses_results_or_changed(node.func.value)
            self.generic_visit(node)
            if is_counted:
                node.func.value = self._wrap(node.func.value, "count_size")
            return node
        return self.generic_visit(node)

    def _count_argument(self, node: ast.Call) -> ast.AST:
        argument = node.args[0]
        if isinstance(argument, COMPREHENSIONS) or not self._flow.uses_results_or_changed(argument):
            return self.generic_visit(node)
        if isinstance(argument, ast.Call) and last_name(argument.func) in _ITERATING_FUNCTIONS:
            node.args[0] = self._count_base(argument)
            return self.generic_visit(node)
        self.generic_visit(node)
        node.args[0] = self._wrap(node.args[0], "count_items" if isinstance(node.func, ast.Name) else "count_size")
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        left, operator, right = node.left, node.ops[0], node.comparators[0]
        is_subset = isinstance(operator, (ast.LtE, ast.Lt)) and self._is_set_of_results(left)
        is_superset = isinstance(operator, (ast.GtE, ast.Gt)) and self._is_set_of_results(right)
        is_in_text = isinstance(operator, ast.In) and isinstance(right, ast.Constant)
        is_counted = is_subset or (is_in_text and self._flow.uses_results_or_changed(left))
        self.generic_visit(node)
        if any(isinstance(part, (ast.Is, ast.IsNot)) for part in node.ops) and not _has_constant(node):
            node.left, *node.comparators = (self._wrap(side, "same") for side in (node.left, *node.comparators))
        if self._check is not None and is_counted:
            node.left = self._wrap(node.left, "count_size")
        if self._check is not None and is_superset:
            node.comparators[0] = self._wrap(node.comparators[0], "count_size")
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        is_counted = isinstance(node.op, (ast.Sub, ast.BitAnd)) and self._is_set_of_results(node.left)
        self.generic_visit(node)
        if self._check is not None and is_counted:
            node.left = self._wrap(node.left, "count_size")
        return node

    def _is_set_of_results(self, node: ast.expr) -> bool:
        return last_name(getattr(node, "func", node)) in _SETS and self._flow.uses_results_or_changed(node)

    def _comprehension(self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp) -> ast.AST:
        if self._check is not None and (
            isinstance(node, ast.GeneratorExp) or any(part.ifs for part in node.generators)
        ):
            for place, part in enumerate(node.generators):
                self._check_indices(part, [node])
                if self._flow.uses_results_or_passed(part.iter) and not (
                    place and last_name(getattr(part.iter, "func", part)) == "range"
                ):
                    part.iter = self._count_base(part.iter)
        return self.generic_visit(node)

    visit_GeneratorExp = visit_ListComp = visit_SetComp = visit_DictComp = _comprehension

    def _check_indices(self, loop: ast.For | ast.comprehension, body: Sequence[ast.AST]) -> None:
        """Makes a loop over the program's indices check that it covers the test's lists."""
        iterable, target = loop.iter, loop.target
        first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        if not isinstance(iterable, ast.Call) or not isinstance(first, ast.Name):
            return
        name = last_name(iterable.func)
        is_length = name == "range" and len(iterable.args) == 1 and ast.unparse(iterable.args[0]).startswith("len(")
        if not (is_length or name == "enumerate") or not self._flow.uses_results_or_changed(iterable):
            return
        indexed = [
            (part.value.id, isinstance(part.slice, ast.Name))
            for node in body
            for part in walk(node)
            if isinstance(part, ast.Subscript)
            and isinstance(part.value, ast.Name)
            and first.id in names_of(part.slice)
            and not self._flow.uses_results_or_changed(part.value)
        ]
        lists = {name for name, _ in indexed} - {
            name for name, is_plain in indexed if not is_plain
        }  # such as `xs[i+1]`
        if lists and not self._flow.compares_length(iterable):
            covered = ast.Tuple([ast.Name(name, ast.Load()) for name in sorted(lists)], ast.Load())
            loop.iter = ast.copy_location(record_call("check_indices", iterable, delayed(covered)), iterable)

    def _count_base(self, node: ast.expr, method: str = "count_items") -> ast.expr:
        """Adds the count of the items that an iterable is made from: those of `got` in `enumerate(filter(g, got))`."""
        name = last_name(getattr(node, "func", node))
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.args
            and name in (*_ITERATING_FUNCTIONS, "range")
        ):
            if name == "range" and not (len(node.args) == 1 and ast.unparse(node.args[0]).startswith("len(")):
                return node
            first = 1 if name in ("map", "filter") else 0
            for place in range(first, len(node.args)):
                if self._flow.uses_results_or_passed(node.args[place]):
                    node.args[place] = self._count_base(node.args[place], method)
            return node
        return self._wrap(node, method) if self._flow.uses_results_or_passed(node) else node

    def _wrap(self, node: ast.expr, method: str) -> ast.expr:
        return ast.copy_location(record_call(method, node), node)


def _has_constant(node: ast.Compare) -> bool:
    """Returns whether a side is a constant, as in `value is None`."""
    return any(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))
