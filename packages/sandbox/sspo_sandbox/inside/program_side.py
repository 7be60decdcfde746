"""The process that holds the program: it loads the program, and then does what the tests ask for."""

from __future__ import annotations

import builtins
import gc
import os
import sys
import types

from sspo_sandbox.inside import wire
from sspo_sandbox.inside.lazy import Any
from sspo_sandbox.inside.peer import Peer
from sspo_sandbox.inside.program import execute, prepare_for_program

LOAD, SET_STREAMS = 0, 1  # the numbers of the program's first objects
STREAMS = [(sys, "stdin"), (sys, "stdout"), (sys, "stderr"), (builtins, "input"), (builtins, "print")]


def start_program() -> wire.Pipe:
    """Forks the program's process; returns the pipe to it."""
    to_program, from_judge = os.pipe()
    to_judge, from_program = os.pipe()
    if os.fork() == 0:
        gc.enable()
        wire.close_all_but({0, 1, 2, to_program, from_program})
        prepare_for_program()
        peer = Peer(wire.Pipe(to_program, from_program))
        original = [getattr(owner, name) for owner, name in STREAMS]
        for function in (_load, lambda new: _set_streams(new, original)):
            peer.export(function)
        try:
            peer.serve()
        finally:
            os._exit(0)
    os.close(to_program)
    os.close(from_program)
    return wire.Pipe(to_judge, from_judge)


def _load(source: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Executes the program as the module `solution`; returns its names, and those of modules with what they are."""
    try:
        execute(source, "solution")
    except SystemExit as end:
        if end.code:
            raise
    found = {name: value for name, value in vars(sys.modules["solution"]).items() if not name.startswith("__")}
    modules = {name: value.__name__ for name, value in found.items() if isinstance(value, types.ModuleType)}
    return {name: value for name, value in found.items() if name not in modules}, modules


def _set_streams(new: list[Any], original: list[Any]) -> None:
    for (owner, name), value, old in zip(STREAMS, new, original, strict=True):
        setattr(owner, name, old if value is None else value)
