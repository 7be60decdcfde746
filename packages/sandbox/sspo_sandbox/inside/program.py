"""Runs a program as Python would, in the current process: with its signals, its builtins, a number of cores."""

from __future__ import annotations

import _sitebuiltins
import builtins
import contextlib
import json
import os
import signal
import sys
import types

from sspo_sandbox.inside.lazy import Any

NAME = "program.py"
_CORES = 4  # that a program sees: on a large machine, Python's pools would start more threads than are allowed
_PACKAGE_FOLDER = os.path.dirname(__file__)


def read_job(descriptor: int) -> dict[str, Any]:
    """Returns the job that a file descriptor holds, and closes the descriptor."""
    with open(descriptor, "rb") as file:
        return json.loads(file.read())


def run(job: int, channel: int) -> None:
    """Runs the program of a job as `__main__`."""
    os.close(channel)
    execute(read_job(job)["program"], "__main__")


def execute(source: str, name: str) -> dict[str, Any]:
    """Executes a program as the module `name` and returns its globals. Its exceptions are not caught."""
    sys.excepthook = print_exception
    sys.path.insert(0, os.getcwd())
    module = types.ModuleType(name)
    module.__file__ = NAME
    # `linecache` gets the program's lines from it; importing `linecache` itself is slow
    module.__loader__ = types.SimpleNamespace(get_source=lambda _: source)  # pyright: ignore
    sys.modules[name] = module
    source = source.removeprefix("\ufeff")  # a byte order mark, as Python's own reader of files ignores it
    exec(compile(source, NAME, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def remember_lines(name: str, source: str) -> None:
    """Stores the lines of a source in `linecache`, so that a traceback can show them."""
    import linecache  # slow to import, and only needed for a test that fails or a cell of a session

    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def print_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Prints an exception as Python does, without the frames of this package."""
    sys.stderr.write(format_exception(kind, error, trace))


def format_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> str:
    """Formats an exception without this package's frames, which come before the program's."""
    import traceback  # slow to import, and right programs do not need it

    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_PACKAGE_FOLDER, "<string>")):
        trace = trace.tb_next
    return "".join(traceback.format_exception(kind, error, trace))


def prepare_for_program() -> None:
    """Prepares this process to execute an untrusted program."""
    sys.path.remove("/sandbox")
    for name in ("exit", "quit"):  # `site`, which is not loaded, defines them
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    for name in ("cpu_count", "process_cpu_count"):  # the latter since Python 3.13
        if hasattr(os, name):
            setattr(os, name, lambda: _CORES)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ignore_signals()


def ignore_signals() -> None:
    """Ignores SIGTERM and SIGUSR1 in this process, since Slurm sends them to every process of a job.

    Processes that the program starts keep the default action: a program may end its children with these signals.
    """

    def do_nothing(*_: object) -> None:
        pass

    def replace_handler(old: object, new: object) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            if signal.getsignal(number) is old:  # otherwise the program has set its own handler
                with contextlib.suppress(ValueError):  # not the main thread
                    signal.signal(number, new)  # pyright: ignore[reportArgumentType]

    # exec resets a handler, but not SIG_IGN; the hooks below reset the handler at a fork
    replace_handler(signal.SIG_IGN, do_nothing)
    os.register_at_fork(
        before=lambda: replace_handler(do_nothing, signal.SIG_DFL),
        after_in_parent=lambda: replace_handler(signal.SIG_DFL, do_nothing),
    )
