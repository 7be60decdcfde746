"""Signals in a process that is about to execute a program."""

import contextlib
import os
import signal
import sys


def prepare_for_program() -> None:
    """Makes this process ready for a program that is not ours."""
    sys.path.remove("/sandbox")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ignore_signals()


def ignore_signals() -> None:
    """Has this process do nothing on the signals that Slurm sends to every process of a job.

    Processes that the program starts keep the default action: a program may end its children with these signals.
    """

    def do_nothing(*_: object) -> None:
        pass

    def turn(old: object, new: object) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            if signal.getsignal(number) is old:  # else the program has a handler of its own
                with contextlib.suppress(ValueError):  # in a thread that is not the first
                    signal.signal(number, new)  # pyright: ignore[reportArgumentType]

    turn(signal.SIG_IGN, do_nothing)  # which goes with exec, and with fork by this
    os.register_at_fork(
        before=lambda: turn(do_nothing, signal.SIG_DFL), after_in_parent=lambda: turn(signal.SIG_DFL, do_nothing)
    )
