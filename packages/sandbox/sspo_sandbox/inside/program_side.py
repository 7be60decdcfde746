"""The process that holds the program: it loads the program, and then does what the tests ask for."""

from __future__ import annotations

import builtins
import gc
import importlib
import os
import sys
import types

from sspo_sandbox.inside.common import wire
from sspo_sandbox.inside.common.program import execute
from sspo_sandbox.inside.common.signals import prepare_for_program
from sspo_sandbox.inside.dialogue.peer import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

LOAD, SET_STREAMS, CALL_LIBRARY = 0, 1, 2  # the numbers of the program's first objects
STREAMS = [(sys, "stdin"), (sys, "stdout"), (sys, "stderr"), (builtins, "input"), (builtins, "print")]


def start_program() -> tuple[int, wire.Pipe]:
    """Forks the program's process; returns its id and the pipe to it."""
    to_program, from_judge = os.pipe()
    to_judge, from_program = os.pipe()
    child = os.fork()
    if child == 0:
        gc.enable()
        wire.close_all_but({0, 1, 2, to_program, from_program})
        prepare_for_program()
        peer = Peer(wire.Pipe(to_program, from_program))
        original = [getattr(owner, name) for owner, name in STREAMS]
        for function in (_load, lambda new: _set_streams(new, original), _call_library):
            peer.export(function)
        try:
            peer.serve()
        finally:
            os._exit(0)
    os.close(to_program)
    os.close(from_program)
    return child, wire.Pipe(to_judge, from_judge)


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


def _call_library(module: str, name: str, args: Any, kwargs: Any) -> None:
    getattr(importlib.import_module(module), name)(*args, **kwargs)
