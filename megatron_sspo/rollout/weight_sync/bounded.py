"""Work that needs other processes, and that ends also if one of them has ended."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.1  # between two looks at the other processes; the end of the work is noticed at once


class AbandonedWork(Exception):
    """Raised for work that was left before its end: another process has failed, or the time is over."""


def run_bounded(work: Callable[[], T], *, has_failed: Callable[[], bool], seconds: float) -> T:
    """Runs `work` in a thread of its own and returns its result, or leaves it.

    A collective of NCCL does not notice that a process has ended, and a thread that is inside cannot be interrupted.
    So the caller has to wait elsewhere. Work that is left ends when its process group is aborted, or else stays behind
    in its thread, which does not keep this process alive.

    Args:
        has_failed: returns whether another process has failed; it is called again and again.
        seconds: the time after which the work is left.

    Raises:
        AbandonedWork: the work was left.
    """
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, name="weight-sync", daemon=True).start()
    deadline = time.monotonic() + seconds
    while True:
        try:
            result, error = results.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if has_failed():
                raise AbandonedWork("another process has failed") from None
            if time.monotonic() > deadline:
                raise AbandonedWork(f"it did not end within {seconds:g} s") from None
            continue
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # otherwise this frame and the error's traceback would keep each other alive
