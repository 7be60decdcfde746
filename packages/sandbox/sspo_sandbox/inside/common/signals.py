"""Prepares a process to execute a program: its signals, the builtins of an ordinary Python, the number of cores."""

import _sitebuiltins
import builtins
import contextlib
import os
import signal
import sys

_CORES = 4  # that a program sees: on a large machine, Python's pools would start more threads than are allowed


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
