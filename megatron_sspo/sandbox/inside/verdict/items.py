"""Counts the items that a check looks at: `all(x > 0 for x in got)` proves nothing if the list is empty."""

import ast

from megatron_sspo.sandbox.inside.verdict.flow import Flow
from megatron_sspo.sandbox.inside.verdict.sites import Site
from megatron_sspo.sandbox.inside.verdict.trees import COMPREHENSIONS, last_name, record_call

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
_ARRAY_COMPARISONS = ("allclose", "array_equiv", "isclose", "assert_allclose", "assert_array_equal", "assert_equal")
_ARRAY_COMPARISONS += ("assert_almost_equal", "assert_array_almost_equal", "assert_array_less")


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
        name = last_name(node.func)
        if name == "zip" and isinstance(node.func, ast.Name) and not node.keywords and len(node.args) > 1:
            flags = [self._flow.uses_results_or_changed(argument) for argument in node.args]
            if any(flags) and not all(flags) and not any(isinstance(arg, ast.Starred) for arg in node.args):
                self.generic_visit(node)
                known = ast.Tuple([ast.Constant(flag) for flag in flags], ast.Load())
                return ast.copy_location(record_call("zip", known, *node.args), node)
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
                name == "issubset"
                and isinstance(node.func, ast.Attribute)
                and self._flow.uses_results_or_changed(node.func.value)
            ):
                self.generic_visit(node)
                node.func.value = self._wrap(node.func.value, "count_size")
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
        left, operator = node.left, node.ops[0]
        is_subset = isinstance(operator, (ast.LtE, ast.Lt)) and last_name(getattr(left, "func", left)) in (
            "set",
            "frozenset",
        )
        is_in_text = isinstance(operator, ast.In) and isinstance(node.comparators[0], ast.Constant)
        is_counted = self._check is not None and self._flow.uses_results_or_changed(left) and (is_subset or is_in_text)
        self.generic_visit(node)
        if is_counted:
            node.left = self._wrap(node.left, "count_size")
        return node

    def _comprehension(self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp) -> ast.AST:
        if self._check is not None and (
            isinstance(node, ast.GeneratorExp) or any(part.ifs for part in node.generators)
        ):
            for place, part in enumerate(node.generators):
                if self._flow.uses_results_or_passed(part.iter) and not (
                    place and last_name(getattr(part.iter, "func", part)) == "range"
                ):
                    part.iter = self._count_base(part.iter)
        return self.generic_visit(node)

    visit_GeneratorExp = visit_ListComp = visit_SetComp = visit_DictComp = _comprehension

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

    def _wrap(self, node: ast.expr, method: str = "count_items") -> ast.expr:
        return ast.copy_location(record_call(method, node), node)
