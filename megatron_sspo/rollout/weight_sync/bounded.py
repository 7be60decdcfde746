"""Runs work that needs other processes, and stops waiting for it if one of them has failed."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from megatron_sspo.processes.hang import mark_progress

T = TypeVar("T")

_POLL_SECONDS = 0.1  # between two checks of the other processes; the end of the work is noticed at once


class AbandonedWork(Exception):
    """Raised for work that is not waited for any more: another process has failed, or the time is over."""


def run_bounded(work: Callable[[], T], *, has_failed: Callable[[], bool], seconds: float) -> T:
    """Runs `work` in a thread of its own and returns its result, or abandons it.

    A collective of NCCL does not notice that another process has ended, and a thread inside of it cannot be
    interrupted, so the caller waits in another thread. Abandoned work ends when its process group is aborted;
    otherwise it stays in its thread, which does not keep this process alive.

    Raises:
        AbandonedWork: another process has failed, by `has_failed`, which is called repeatedly; or the time is over.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weight-sync", daemon=True).start()
    deadline = time.monotonic() + seconds
    while not wait([future], timeout=_POLL_SECONDS).done:
        mark_progress()  # the work has a time limit of its own
        if has_failed():
            raise AbandonedWork("another process has failed")
        if time.monotonic() > deadline:
            raise AbandonedWork(f"it did not end within {seconds:g} s")
    return future.result()
