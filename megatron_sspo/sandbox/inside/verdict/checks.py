"""Rewrites the tests so that the judge can tell what they really checked.

Every assert statement reports to a `Record` (record.py), and so does every block that holds one. A loop over nothing, a
branch that is not taken, or an exception caught half way leaves a block that was reached but checked nothing.
"""

import ast

from megatron_sspo.sandbox.inside.verdict.flow import Flow, names_of
from megatron_sspo.sandbox.inside.verdict.items import ItemCounter
from megatron_sspo.sandbox.inside.verdict.sites import Site, Sites
from megatron_sspo.sandbox.inside.verdict.trees import (
    FUNCTIONS,
    can_be_delayed,
    delayed,
    last_name,
    only_logs,
    record_call,
    statement,
)

_ANY_ERROR = {"AssertionError", "Exception", "BaseException"}  # a handler with one of these catches a failed check


class Rewriter(ItemCounter):
    """Rewrites one test. `sites` is shared by all tests of a job."""

    def __init__(self, flow: Flow, text: int, sites: Sites) -> None:
        self._flow = flow
        self._text = text
        self._sites = sites
        self._blocks: list[int] = []
        self._parameters: list[set[str]] = []
        self._owner = ""
        self._check: Site | None = None

    def rewrite(self, tree: ast.Module) -> ast.Module:
        """Rewrites a test."""
        return ast.fix_missing_locations(self.visit(tree))

    # ------------------------------------------------------------------ statements

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        site = self._site(node, "check")
        site.is_real = not isinstance(node.test, ast.Constant)
        self._add_results(site, node.test)
        self._check = site
        test = node.test
        parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        calls = [self._rewrite_condition(site, part) for part in parts]
        self._check = None
        node.test = calls[0] if len(calls) == 1 else ast.BoolOp(ast.And(), list(calls))
        if node.msg is not None:
            node.msg = self.visit(node.msg)
        return node

    def _rewrite_condition(self, site: Site, part: ast.expr) -> ast.Call:
        """Returns the call that evaluates a condition, or one operand of an `and`."""
        number = ast.Constant(site.number)
        if not can_be_delayed(part) or not self._can_delay():
            return record_call("check_value", number, self.visit(part))
        match part:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                flags = [ast.Constant(self._flow.uses_results(side)) for side in (left, right)]
                rewritten = self.visit(part)
                sides = rewritten.left, rewritten.comparators[0]
                return record_call("check_equal", number, *(delayed(side) for side in sides), *flags)
        return record_call("check", number, delayed(self.visit(part)))

    def _can_delay(self) -> bool:
        return not (self._parameters and self._parameters[-1] == {"<class>"})

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        if not isinstance(node.value, ast.Call) or not self._is_check_call(node.value):
            return self.generic_visit(node)
        site = self._site(node, "check")
        self._add_results(site, node.value)
        can_delay = can_be_delayed(node.value)
        flags = [ast.Constant(self._flow.uses_results(side)) for side in node.value.args[:2]]
        self._check = site
        call = self.visit(node.value)
        self._check = None
        if not can_delay:
            node.value = call
            return [node, statement(record_call("block_passed", ast.Constant(site.number)), node)]
        if _compares_two(call):
            sides = [delayed(side) for side in call.args[:2]]
            function = _of_two(call)
            node.value = record_call("check_equality_call", ast.Constant(site.number), *sides, *flags, function)
        else:
            node.value = record_call("check_call", ast.Constant(site.number), delayed(call))
        return node

    def _is_check_call(self, call: ast.Call) -> bool:
        name = last_name(call.func)
        if isinstance(call.func, ast.Name) and call.func.id in self._flow.defined:
            return False
        return name.lower().startswith("assert") and not isinstance(call.func, ast.Lambda)

    def visit_For(self, node: ast.For) -> list[ast.AST]:
        return self._block(node, node.iter, "loop")

    def visit_AsyncFor(self, node: ast.AsyncFor) -> list[ast.AST]:
        return self._block(node, node.iter, "loop")

    def visit_While(self, node: ast.While) -> list[ast.AST]:
        return self._block(node, node.test, "loop")

    def visit_If(self, node: ast.If) -> list[ast.AST]:
        return self._block(node, node.test, "branch")

    def visit_Match(self, node: ast.Match) -> list[ast.AST]:
        return self._block(node, node.subject, "branch")

    def visit_Try(self, node: ast.Try) -> list[ast.AST]:
        return self._block(node, None, "try")

    def visit_With(self, node: ast.With) -> list[ast.AST]:
        return self._block(node, None, "with")

    def visit_AsyncWith(self, node: ast.AsyncWith) -> list[ast.AST]:
        return self._block(node, None, "with")

    def _block(self, node: ast.stmt, header: ast.expr | None, kind: str) -> list[ast.AST]:
        """Rewrites a block; if it has checks, a statement before it records that it was reached."""
        has_checks = _holds_checks(node, self)
        is_counted = has_checks and self._flow.uses_results_or_passed(header or node) and not _expects_error(node)
        before: list[ast.AST] = []
        if is_counted:
            site = self._site(node, kind)
            if header is not None:
                self._sites.add_header_results(site, header)
            self._blocks.append(site.number)
            before = [statement(record_call("reach_block", ast.Constant(site.number)), node)]
        if isinstance(node, ast.For):
            self._rewrite_loop(node, has_checks)
        self.generic_visit(node)
        if is_counted:
            self._blocks.pop()
        return [*before, node, *self._statements_after(node)]

    def _statements_after(self, node: ast.stmt) -> list[ast.AST]:
        if not isinstance(node, (ast.With, ast.AsyncWith)):
            return []
        texts = [ast.unparse(item.context_expr) for item in node.items]
        if any("AssertionError" in text for text in texts):
            return [statement(record_call("drop_last_failure"), node)]
        caught: list[ast.AST] = [statement(record_call("drop_escaped"), node)]
        if _expects_error(node):
            site = self._site(node, "check")
            return [statement(record_call("block_passed", ast.Constant(site.number)), node), *caught]
        return caught if any("suppress" in text for text in texts) else []

    def _rewrite_loop(self, node: ast.For, has_checks: bool) -> None:
        iterable = node.iter
        if has_checks:
            self._check_indices(node, node.body)
            if isinstance(iterable, ast.Name) and iterable.id in self._flow.passed:
                node.iter = ast.copy_location(record_call("record_loop", iterable), iterable)
        elif self._owner and self._flow.uses_results_or_changed(iterable):
            node.iter = self._count_base(iterable, "count_in_helper")  # a helper of a test

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        names = names_of(node.type) if node.type is not None else set()
        self.generic_visit(node)
        if "AssertionError" in names and not all(map(only_logs, node.body)):
            node.body.insert(0, statement(record_call("drop_last_failure"), node))
        node.body.insert(0, statement(record_call("drop_escaped"), node))
        if node.type is not None and self._flow.uses_results(node.type) and not names & _ANY_ERROR:
            node.body.insert(0, statement(record_call("check_caught"), node))
        if node.type is not None and "StopIteration" in names:
            node.type = ast.copy_location(record_call("catch_stops", node.type), node.type)
        return node

    # ------------------------------------------------------------------ functions and classes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        blocks, self._blocks = self._blocks, []
        has_checks = _holds_checks(node, self)
        arguments = node.args
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        in_class = bool(self._parameters) and self._parameters[-1] == {"<class>"}
        self._parameters.append({argument.arg for argument in names if argument is not None})
        if has_checks and (node.name in self._flow.passed or any(map(self._flow.uses_results, node.decorator_list))):
            site = self._site(node, "function")
            site.num_reached = 1
            self._blocks.append(site.number)
        owner = self._owner
        self._owner = owner or node.name
        self.generic_visit(node)
        self._owner = owner
        self._parameters.pop()
        self._blocks = blocks
        if in_class and node.name.startswith("test"):
            self._report_errors(node, "record_escape")
        elif has_checks and not self._flow.reads_errors:
            self._report_errors(node, "record_end")
        return node

    def _report_errors(self, node: ast.FunctionDef | ast.AsyncFunctionDef, method: str) -> None:
        """Lets a function report the exceptions that leave it."""
        handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), None, [])
        handler.body = [statement(record_call(method), node), ast.copy_location(ast.Raise(), node)]
        node.body = [ast.copy_location(ast.Try(node.body, [handler], [], []), node)]

    visit_AsyncFunctionDef = visit_FunctionDef  # pyright: ignore[reportAssignmentType]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        owner = self._owner
        self._owner = owner or node.name
        self._parameters.append({"<class>"})
        self.generic_visit(node)
        self._parameters.pop()
        self._owner = owner
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        check, self._check = self._check, None
        self.generic_visit(node)
        self._check = check
        if "next" in names_of(node.body) and can_be_delayed(node.body):
            node.body = ast.copy_location(record_call("lambda_body", delayed(node.body)), node.body)
        return node

    def _site(self, node: ast.AST, kind: str) -> Site:
        return self._sites.add(self._text, getattr(node, "lineno", 0), kind, self._blocks, self._owner)

    def _add_results(self, site: Site, expression: ast.expr) -> None:
        self._sites.add_results(site, expression, set().union(*self._parameters))


def _expects_error(node: ast.stmt) -> bool:
    """Returns whether a block is itself a check, such as `with pytest.raises(...)`."""
    return isinstance(node, (ast.With, ast.AsyncWith)) and any(
        last_name(getattr(item.context_expr, "func", item)).startswith(("assert", "raises")) for item in node.items
    )


def _compares_two(call: ast.Call) -> bool:
    """Returns whether a call asserts that its first two arguments are equal, as `assertEqual` does."""
    name = last_name(call.func).lower()
    sides = call.args[:2]
    is_equality = name.endswith(("equal", "equals")) and "not" not in name
    return is_equality and len(sides) == 2 and not any(isinstance(side, ast.Starred) for side in sides)


def _of_two(call: ast.Call) -> ast.Lambda:
    """Returns a function that makes a call with other values in place of its first two arguments."""
    function = delayed(call)
    names = ["__first__", "__second__"]
    function.args.args = [ast.arg(name) for name in names]
    call.args[:2] = [ast.Name(name, ast.Load()) for name in names]
    return function


def _holds_checks(node: ast.AST, rewriter: Rewriter) -> bool:
    """Returns whether a block holds a check other than `assert False`, outside of nested functions and classes."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        part = waiting.pop()
        if isinstance(part, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(part, ast.Assert) and not isinstance(part.test, ast.Constant):
            return True
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) and rewriter._is_check_call(part.value):
            return True
        waiting.extend(ast.iter_child_nodes(part))
    return False
