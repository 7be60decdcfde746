"""The process that holds the tests. The program runs in another process, which sends only data.

The program's process is forked before this process reads the tests. It gets no file descriptor for the verdict, and
this process's memory is hidden from it. So the program can neither read the expected results nor change how it is
judged. It may change its own builtins, output, exit code or comparison operators, but the asserts are evaluated here.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import re
import sys
import threading
import types
from collections.abc import Sequence

from sspo_sandbox.inside import wire
from sspo_sandbox.inside.guard import allow, watch_texts
from sspo_sandbox.inside.lazy import Any
from sspo_sandbox.inside.peer import Peer
from sspo_sandbox.inside.program import read_job, remember_lines
from sspo_sandbox.inside.program_side import LOAD, SET_STREAMS, STREAMS, start_program

_CATCH_ALL = [AssertionError, Exception, BaseException]
_TOOLS = ("math", "np", "numpy", "pytest", "unittest")  # names that are a module's, whatever the program says


def judge(job: int, channel: int) -> None:
    """Runs a job's tests and writes the verdict, with the job's nonce, to the channel."""
    gc.disable()  # until the tests run, since objects made before are kept anyway
    gc.freeze()  # the program's collections leave them alone, so that both processes share their memory
    pipe = start_program()
    wire.forbid_inspection()
    work = read_job(job)
    try:
        reason, detail = find_verdict(pipe, work["program"], work["tests"])
    except BaseException as error:  # of the program's `__str__`, as the judge describes a failure; it chose the kind
        reason, detail = "error", f"a failure cannot be described: {type(error).__name__}"
    with open(channel, "w") as file:
        json.dump({"nonce": work["nonce"], "reason": reason, "detail": detail[:2000]}, file)
    os._exit(0)  # this is the sandbox's first process, so all others end too


def find_verdict(pipe: wire.Pipe, program: str, tests: Sequence[str]) -> tuple[str, str]:
    """Returns the reason and the detail of the verdict."""
    reported: list[str] = []  # failures that a test could hide by catching an exception
    peer = Tests(pipe, reported)
    try:
        names, modules = peer.request("call", LOAD, (program,))
    except wire.Broken as error:
        return "error", str(error)
    except BaseException as error:
        return ("memory" if isinstance(error, MemoryError) else "error"), f"{type(error).__name__}: {error}"
    namespace = _make_modules(peer, {**names, **{name: _Module(of) for name, of in modules.items()}}, tests)
    _watch(tests, reported)
    gc.enable()
    for number, test in enumerate(tests, start=1):
        name = f"test {number}"
        try:
            exec(compile(test, name, "exec", dont_inherit=True), namespace)
        except wire.Broken as error:
            return "error", f"{name}: {error}"
        except BaseException as error:
            if not (isinstance(error, SystemExit) and not error.code and not any(error is e for e in peer.raised)):
                return ("memory" if isinstance(error, MemoryError) else "failed"), _describe(name, test, error)
    if peer.is_broken:
        return "error", "the program ended, or broke the protocol"
    return ("failed", reported[0]) if reported else ("passed", "")


class Tests(Peer):
    """The tests' end of the dialogue. The program uses the streams that the tests have set."""

    def __init__(self, pipe: wire.Pipe, reported: list[str]) -> None:
        super().__init__(pipe, is_judge=True)
        self._reported = reported
        self._original = [getattr(owner, name) for owner, name in STREAMS]
        self._streams: list[Any] = [None] * len(STREAMS)

    def request(self, operation: str, target: int, *args: Any, **kwargs: Any) -> Any:
        current = [getattr(owner, name) for owner, name in STREAMS]
        new = [None if stream is old else stream for stream, old in zip(current, self._original, strict=True)]
        if any(stream is not before for stream, before in zip(new, self._streams, strict=True)):
            self._streams = new
            super().request("call", SET_STREAMS, (new,))
        return super().request(operation, target, *args, **kwargs)

    def perform(self, operation: str, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        allow(operation, value, args)
        try:
            return super().perform(operation, value, args, kwargs)
        except AssertionError as error:  # the program may catch it
            if not any(error is raised for raised in self.raised):
                self._reported.append("an assert failed in a function that the program calls")
            raise


class _Module(types.ModuleType):
    """A module that the program has imported. The tests' own is imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def _make_modules(peer: Peer, names: dict[str, Any], tests: Sequence[str]) -> dict[str, Any]:
    """Makes the modules `solution` and `__main__`, in which the tests run; returns the latter's names."""
    main, solution = types.ModuleType("__main__"), types.ModuleType("solution")
    for name, value in sorted(names.items(), key=lambda item: not item[0][:1].isupper()):  # see `Peer.named`
        if isinstance(value, type) and value in _CATCH_ALL and name != value.__name__:
            value = type(name, (Exception,), {})  # `except Insufficient` would catch what the test raises
        if name not in _TOOLS or isinstance(value, types.ModuleType):
            vars(solution)[name] = peer.named(name, value)
    own = {name for name in names if not hasattr(builtins, name)}
    if not own & set(re.findall(r"\w+", "\n".join(tests))):  # they are about a function with a builtin's name
        own = set(names)
    vars(main).update({name: value for name, value in vars(solution).items() if name in own})
    sys.modules.update(__main__=main, solution=solution)
    return vars(main)


def _watch(tests: Sequence[str], reported: list[str]) -> None:
    """Reports failures that would be lost."""
    threading.excepthook = lambda lost: reported.append(f"a thread of the tests: {lost.exc_type.__name__}")
    watch_texts(tests, reported.append)
    if any("unittest" in test for test in tests):
        import unittest

        for name in ("addError", "addFailure", "addUnexpectedSuccess"):
            setattr(unittest.TestResult, name, _reporting(getattr(unittest.TestResult, name), reported))
        unittest.TestResult.addSubTest = _reporting(unittest.TestResult.addSubTest, reported)


def _reporting(method: Any, reported: list[str]) -> Any:
    def reports(self: Any, test: Any, *rest: Any) -> None:
        if method.__name__ != "addSubTest" or rest[-1] is not None:
            reported.append(f"unittest: {method.__name__}{''.join(f' {kind.__name__}' for kind, *_ in rest[-1:])}")
        method(self, test, *rest)

    return reports


def _describe(name: str, test: str, error: BaseException) -> str:
    import traceback  # slow to import, and right programs do not need it

    remember_lines(name, test)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    line = f", {frames[-1].line}" if frames else ""
    return f"{name}{line}: {type(error).__name__}: {error}"
