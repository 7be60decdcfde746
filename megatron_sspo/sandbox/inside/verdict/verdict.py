"""Runs the tests against the program and determines the verdict."""

from __future__ import annotations

import ast
import contextlib
import gc
import sys
import types

from megatron_sspo.sandbox.inside.common import wire
from megatron_sspo.sandbox.inside.common.program import remember_lines
from megatron_sspo.sandbox.inside.proxies.client import JudgeSide, solution_module
from megatron_sspo.sandbox.inside.proxies.files import OwnFiles
from megatron_sspo.sandbox.inside.proxies.settings import Settings
from megatron_sspo.sandbox.inside.verdict import guard, unittests
from megatron_sspo.sandbox.inside.verdict.checks import Rewriter
from megatron_sspo.sandbox.inside.verdict.flow import Flow, names_of
from megatron_sspo.sandbox.inside.verdict.names import Namespace
from megatron_sspo.sandbox.inside.verdict.record import Record
from megatron_sspo.sandbox.inside.verdict.sites import Sites
from megatron_sspo.sandbox.inside.verdict.trees import FUNCTIONS, RECORD

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any


def find_verdict(judge_side: JudgeSide, tests: list[str], reported: list[str]) -> tuple[str, str]:
    """Returns the reason and the detail of the verdict.

    Args:
        judge_side: the judge's side of the protocol, with the program still being loaded.
        reported: failures that a test could hide by catching an exception; it grows while the tests run.
    """
    try:
        judge_side.wait_for_program()
    except wire.Broken as error:
        return "error", str(error)
    except BaseException as error:
        return ("memory" if isinstance(error, MemoryError) else "error"), f"{type(error).__name__}: {error}"
    try:
        trees = [ast.parse(test, f"test {number}") for number, test in enumerate(tests, start=1)]
    except (SyntaxError, ValueError, RecursionError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    return _run_tests(judge_side, tests, trees, reported)


def _run_tests(
    judge_side: JudgeSide, tests: list[str], trees: list[ast.Module], reported: list[str]
) -> tuple[str, str]:
    flow = Flow(trees)
    judge_side.class_names = flow.class_names
    solution_module(judge_side)
    expects_name_error = any("NameError" in test for test in tests)
    report = reported.append
    namespace = Namespace(
        judge_side, flow, lambda n: None if expects_name_error else report(f"name {n!r} is not defined")
    )
    judge_side.files = OwnFiles(flow.nodes)
    judge_side.settings = Settings(tests)
    sites = Sites(flow, is_detailed=False)
    record = namespace[RECORD] = Record(judge_side, flow, sites, lambda: _detailed_sites(tests))
    guard.install(flow.nodes, report)
    if any("unittest" in test for test in tests):
        unittests.watch(record)
    if any("pickle" in test or "shelve" in test for test in tests):
        guard.refuse_changes_by_pickles(report)
    if any("doctest" in test for test in tests):
        guard.refuse_doctests(report)
    sys.modules["__main__"] = _MainModule(namespace)
    for name in flow.free & _names_in_classes(flow.nodes):
        if judge_side.find_global(name)[0]:
            with contextlib.suppress(KeyError):
                namespace[name]
    rewritten = [Rewriter(flow, number, sites).rewrite(tree) for number, tree in enumerate(trees, start=1)]
    gc.enable()
    for number, (test, tree) in enumerate(zip(tests, rewritten, strict=True), start=1):
        name = f"test {number}"
        try:
            exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        except wire.Broken as error:
            return "error", f"{name}: {error}"
        except BaseException as error:
            if not _is_clean_exit(error, judge_side):
                return ("memory" if isinstance(error, MemoryError) else "failed"), _describe(name, test, error)
    if judge_side.is_broken:
        return "error", "the program ended, or broke the protocol"
    found = next(iter(reported), "") or record.verdict()
    return ("failed", found) if found else ("passed", "")


def _names_in_classes(nodes: list[ast.AST]) -> set[str]:
    """Returns the names in the bodies of the tests' classes: there, Python does not call `Namespace.__missing__`."""
    bodies = [part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body]
    return set().union(*(names_of(part) for part in bodies if not isinstance(part, FUNCTIONS)))


class _MainModule(types.ModuleType):
    """The module in which `unittest.main()` looks for tests: it has the tests' own names."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__("__main__")
        self._namespace = namespace

    def __dir__(self) -> list[str]:
        return list(self._namespace)

    def __getattr__(self, name: str) -> Any:
        if name not in self._namespace:
            raise AttributeError(name)
        return self._namespace[name]


def _detailed_sites(tests: list[str]) -> Sites:
    """Returns the checks and blocks of the tests, with the results that each looks at."""
    trees = [ast.parse(test) for test in tests]
    flow = Flow(trees)
    sites = Sites(flow, is_detailed=True)
    for number, tree in enumerate(trees, start=1):
        Rewriter(flow, number, sites).rewrite(tree)
    return sites


def _is_clean_exit(error: BaseException, judge_side: JudgeSide) -> bool:
    """Returns whether a test, and not the program, exited without an error, as `unittest.main()` does."""
    return (
        isinstance(error, SystemExit) and not error.code and not any(error is e for e in judge_side.raised_by_program)
    )


def _describe(name: str, test: str, error: BaseException) -> str:
    import traceback  # slow to import, and right programs do not need it

    remember_lines(name, test)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    line = f", {frames[-1].line}" if frames else ""
    return f"{name}{line}: {type(error).__name__}: {error}"
