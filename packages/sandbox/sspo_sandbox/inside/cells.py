"""An interpreter that executes one cell after another, as a notebook does."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import sys
import types

from sspo_sandbox.inside.lazy import Any
from sspo_sandbox.inside.program import format_exception, remember_lines


class CellTimeout(BaseException):
    """Raised if a cell exceeds its deadline. It is a `BaseException`, so that a cell does not catch it by accident."""


def serve(job: int, channel: int) -> None:
    """Reads a request for each cell from standard input, and writes a reply to the channel; each is one line."""
    os.close(job)
    own_input = os.dup(0)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(1, 2)  # one stream keeps the order of stdout and stderr
    sys.path.insert(0, os.getcwd())
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    signal.signal(signal.SIGALRM, _raise_timeout)
    with open(own_input, encoding="utf-8") as requests, open(channel, "w", encoding="utf-8") as replies:
        for line in requests:
            request = json.loads(line)
            text = _execute(request["code"], f"<cell {request['number']}>", request["seconds"], module.__dict__)
            json.dump({"number": request["number"], "text": text}, replies)
            replies.write("\n")
            replies.flush()


def _raise_timeout(number: int, frame: Any) -> None:
    raise CellTimeout


def _execute(code: str, name: str, seconds: float, namespace: dict[str, Any]) -> str:
    """Executes a cell; returns what it shows after its output: its last expression's value, or the traceback."""
    remember_lines(name, code)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return _evaluate(code, name, namespace)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, ValueError):  # a cell has replaced it, or closed it
                    stream.flush()
    except CellTimeout:
        return f"TimeoutError: the cell was interrupted after {seconds:g} seconds\n"
    except SystemExit:
        raise
    except BaseException as error:
        return format_exception(type(error), error, error.__traceback__)


def _evaluate(code: str, name: str, namespace: dict[str, Any]) -> str:
    # not ast.parse, whose own lines would be in the traceback of a syntax error
    tree = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), namespace)
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)
    if value is None:
        return ""
    namespace["_"] = value
    return f"{value!r}\n"
