"""Marks of progress, and the call of the user's code that the main thread is in, for the watchdog."""

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class UserCall:
    """A call of the user's code that has not returned.

    Attributes:
        what: the name of the code, for messages: "MyReward.score".
        began: when the call began (`time.monotonic`).
    """

    what: str
    began: float


_last_mark = 0.0
_user_call: UserCall | None = None
_longest_user_calls: dict[str, float] = {}  # by what was called, in seconds


def mark_progress() -> None:
    """Counts as progress of this rank. Call it where the main thread waits for a server that answers or for a disk."""
    global _last_mark
    _last_mark = time.monotonic()


def wait_for_results(futures: Iterable[Future[T]]) -> list[T]:
    """Returns the results of futures with a time limit of their own, in order. Each of them counts as progress."""
    found = []
    for future in futures:
        found.append(future.result())
        mark_progress()
    return found


def last_mark() -> float:
    """Returns when `mark_progress` was last called (`time.monotonic`); 0 if never."""
    return _last_mark


@contextmanager
def watched_user_call(what: str) -> Iterator[None]:
    """A context manager for a call of the user's code, which may loop in Python without end.

    It does nothing in other threads than the main one, for which the main thread waits, and within another such call.
    """
    global _user_call
    if _user_call is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _user_call = call = UserCall(what, time.monotonic())
    try:
        yield
    finally:
        _user_call = None
        _longest_user_calls[what] = max(_longest_user_calls.get(what, 0.0), time.monotonic() - call.began)


def user_call() -> UserCall | None:
    """Returns the call of the user's code that the main thread is in; None if it is in none."""
    return _user_call


def longest_user_call(what: str) -> float | None:
    """Returns the duration of the longest call of this code of the user's, in seconds; None if none has returned."""
    return _longest_user_calls.get(what)
