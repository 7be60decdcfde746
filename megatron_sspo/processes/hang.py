"""Ends a process that hangs, and writes the stacks of its threads, by Python's `faulthandler`.

The timer is a thread of C code, so it also ends a process in which C code keeps Python's lock. The launcher, torchrun
or srun then ends the other ranks.
"""

import faulthandler
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

_limit: float | None = None  # seconds without progress after which this process ends; None: without limit
_marked = 0.0  # when the timer was last set (`time.monotonic`)


@contextmanager
def silence_limited(seconds: float) -> Iterator[None]:
    """Ends this process with exit code 1 if the body does not call `mark_progress` for so long."""
    _set(seconds)
    try:
        yield
    finally:
        _set(None)


@contextmanager
def waits_for_another_rank(is_limited: bool) -> Iterator[None]:
    """Takes the limit away where this rank waits for another rank, which has a limit of its own."""
    before = _limit
    _set(before if is_limited else None)
    try:
        yield
    finally:
        _set(before)


def mark_progress() -> None:
    """Counts as progress of this rank. Call it in loops, and where the main thread waits for what has a time limit."""
    if _limit is not None and time.monotonic() - _marked > min(1.0, _limit / 10):
        _set(_limit)


def _set(seconds: float | None) -> None:
    global _limit, _marked
    _limit, _marked = seconds, time.monotonic()
    if seconds is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # the descriptor, whatever sys.stderr is
    else:
        faulthandler.cancel_dump_traceback_later()


def _forget_in_fork() -> None:
    global _limit
    _limit = None


# A fork does not have the timer's thread, for which it would wait without end when it cancels the timer or exits.
os.register_at_fork(
    before=lambda: faulthandler.cancel_dump_traceback_later(),
    after_in_parent=lambda: _set(_limit),
    after_in_child=_forget_in_fork,
)
