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
_REPLY_SECONDS = 2.0
_PREFIX = "megatron_sspo/control"


class ControlStore:
    """Messages between ranks through the TCPStore of the process group, over separate connections.

    If the store's process is stopped (SIGSTOP), calls to the store block without end. So `exchange_status` must run in
    a thread that no other thread waits for; the other methods have a timeout.
    """

    def __init__(self) -> None:
        self._store = _connect()
        self._ending = _connect()  # a second connection, for calls that must not wait for `exchange_status`
        self.ended: tuple[str, str] | None = None  # (kind, reason), after a rank has ended the run

    def exchange_status(
        self, rank: int, neighbour: int, *, has_progressed: bool, is_stop_requested: bool
    ) -> "RanksStatus":
        """Sends this rank's status and returns the combined status of all ranks.

        Raises:
            RuntimeError: the store does not exist any more.
        """
        self._store.add(f"heartbeat/{rank}", 1)
        status = RanksStatus(
            progress=self._store.add("progress", int(has_progressed)),
            heartbeat=self._store.add(f"heartbeat/{neighbour}", 0),
            is_stop_requested=self._store.add("stop_requested", int(is_stop_requested)) > 0,
            dump_requests=self._store.add("dump_requests", 0),
        )
        if self._store.add("ended", 0) and self.ended is None:
            kind, _, why = self._store.get("reason").decode().partition(" ")
            self.ended = kind, why
        return status

    def end(self, kind: str, why: str) -> bool:
        """Ends the run with a reason that all ranks read; returns whether this rank is the first to end it."""
        if self.ended is not None:
            return False
        self.ended = kind, why

        def claim() -> bool:
            if self._ending.add("claims", 1) > 1:
                return False
            self._ending.set("reason", f"{kind} {why}".encode(errors="backslashreplace").decode())
            self._ending.add("ended", 1)
            return True

        return _within(_REPLY_SECONDS, claim, otherwise=True)  # without a store each rank acts as the first

    def request_dumps(self) -> None:
        """Asks every rank to write its stacks."""
        _within(_REPLY_SECONDS, lambda: self._ending.add("dump_requests", 1), otherwise=0)

    def count_dump(self) -> None:
        """Counts this rank as one that has written its stacks."""
        _within(_REPLY_SECONDS, lambda: self._ending.add("dumps", 1), otherwise=0)

    def await_dumps(self, count: int, seconds: float) -> None:
        """Waits until `count` ranks have written their stacks, at most `seconds`."""

        def wait() -> None:
            while self._ending.add("dumps", 0) < count:
                time.sleep(0.1)

        _within(seconds, wait, otherwise=None)

    def release(self) -> None:
        """Ends the wait of all ranks in `await_release`."""
        _within(_REPLY_SECONDS, lambda: self._ending.add("released", 1), otherwise=0)

    def await_release(self, seconds: float) -> None:
        """Waits until the rank that ended the run has reported the reason, or the store is gone, at most `seconds`."""

        def wait() -> None:
            with contextlib.suppress(RuntimeError):
                while not self._ending.add("released", 0):
                    time.sleep(0.1)

        _within(seconds, wait, otherwise=None)


@dataclass(frozen=True, kw_only=True)
class RanksStatus:
    """The combined status of all ranks.

    Attributes:
        progress: a counter that any rank increases when it makes progress.
        heartbeat: the neighbour's counter, which grows as long as the neighbour is alive.
        is_stop_requested: whether any rank got a stop request.
        dump_requests: how often stacks were requested.
    """

    progress: int
    heartbeat: int
    is_stop_requested: bool
    dump_requests: int


def _within(seconds: float, action: Callable[[], T], *, otherwise: T) -> T:
    """Returns the result of `action`, or `otherwise` if the store does not answer in time or is gone."""
    results: queue.SimpleQueue[T] = queue.SimpleQueue()

    def run() -> None:
        with contextlib.suppress(RuntimeError):
            results.put(action())

    threading.Thread(target=run, name="watchdog-store", daemon=True).start()
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
