"""Messages between ranks outside of collectives, through a key-value store that rank 0 or torchrun serves."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")

_CONNECT_SECONDS = timedelta(seconds=60)
_ANSWER_SECONDS = 2.0
_PREFIX = "megatron_sspo/board"


class Board:
    """A connection of its own to the store that the process group was made by.

    A store whose process was stopped lets its callers wait without end, so that `exchange` belongs into a thread that
    nobody waits for; the other methods come back after some seconds.
    """

    def __init__(self) -> None:
        self._store = _connect()
        self._ending = _connect()  # a second one, for what must not wait behind `exchange`
        self.ended: tuple[str, str] | None = None  # (kind, why), once a rank has ended the run

    def exchange(self, rank: int, neighbour: int, *, has_progressed: bool, is_asked: bool) -> "Answer":
        """Tells what this rank knows; returns what all know.

        Raises:
            RuntimeError: the store is gone.
        """
        self._store.add(f"sign/{rank}", 1)
        answer = Answer(
            progress=self._store.add("progress", int(has_progressed)),
            sign=self._store.add(f"sign/{neighbour}", 0),
            is_asked=self._store.add("asked", int(is_asked)) > 0,
            dumps_asked_for=self._store.add("dumps_asked_for", 0),
        )
        if self._store.add("ended", 0) and self.ended is None:
            kind, _, why = self._store.get("reason").decode().partition(" ")
            self.ended = kind, why
        return answer

    def end(self, kind: str, why: str) -> bool:
        """Ends the run, for a reason that all ranks will read; returns whether this rank is the first to do so."""
        if self.ended is not None:
            return False
        self.ended = kind, why

        def claim() -> bool:
            if self._ending.add("claims", 1) > 1:
                return False
            self._ending.set("reason", f"{kind} {why}")
            self._ending.add("ended", 1)
            return True

        return _within(_ANSWER_SECONDS, claim, otherwise=True)  # without a store each rank finds the reason by itself

    def ask_for_dumps(self) -> None:
        """Has every rank write its stacks."""
        _within(_ANSWER_SECONDS, lambda: self._ending.add("dumps_asked_for", 1), otherwise=0)

    def count_dump(self) -> None:
        """Says that this rank has written its stacks."""
        _within(_ANSWER_SECONDS, lambda: self._ending.add("dumps", 1), otherwise=0)

    def await_dumps(self, count: int, seconds: float) -> None:
        """Returns when so many ranks have written their stacks, or after so many seconds."""

        def wait() -> None:
            while self._ending.add("dumps", 0) < count:
                time.sleep(0.1)

        _within(seconds, wait, otherwise=None)

    def release(self) -> None:
        """Lets the ranks end that wait in `await_release`."""
        _within(_ANSWER_SECONDS, lambda: self._ending.add("released", 1), otherwise=0)

    def await_release(self, seconds: float) -> None:
        """Returns when the rank that ended the run has reported why, or is gone, or after so many seconds."""

        def wait() -> None:
            with contextlib.suppress(RuntimeError):
                while not self._ending.add("released", 0):
                    time.sleep(0.1)

        _within(seconds, wait, otherwise=None)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The combined knowledge of all ranks.

    Attributes:
        progress: a count that grows with any rank's progress.
        sign: a count that grows as long as the neighbour lives.
        is_asked: whether any rank was asked to end.
        dumps_asked_for: how often stacks were asked for.
    """

    progress: int
    sign: int
    is_asked: bool
    dumps_asked_for: int


def _within(seconds: float, action: Callable[[], T], *, otherwise: T) -> T:
    """Returns what `action` does, or `otherwise` where the store does not answer in time, or is gone."""
    results: queue.SimpleQueue[T] = queue.SimpleQueue()

    def run() -> None:
        with contextlib.suppress(RuntimeError):
            results.put(action())

    threading.Thread(target=run, name="watchdog-board", daemon=True).start()
    try:
        return results.get(timeout=seconds)
    except queue.Empty:
        return otherwise


def _connect() -> Any:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        host, port, is_master=False, wait_for_workers=False, timeout=_CONNECT_SECONDS
    )
    return dist.PrefixStore(_PREFIX, store)  # pyright: ignore[reportPrivateImportUsage]
