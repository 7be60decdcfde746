"""Checks programs in a bounded number of sandboxes at a time, and measures their latency."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sspo_sandbox.remote import Runner
from sspo_sandbox.types import Case, SandboxError, Verdict
from sspo_sandbox.vacuous import find_stubs

_MAX_LATENCIES = 10_000


class SandboxPool:
    """Bounds how many sandboxes run at a time; the others wait in a queue.

    Args:
        runner: a `Sandbox` or a `RemoteSandbox`; it is closed with the pool.
        concurrency: the number of sandboxes at a time. More than the number of cores makes each one slower.
        on_result: a function that is called after each result that a caller waits for, such as a watchdog's.
    """

    def __init__(self, runner: Runner, concurrency: int, on_result: Callable[[], object] = lambda: None) -> None:
        if concurrency < 1:
            raise SandboxError(f"the sandbox pool's concurrency is {concurrency}: it must be 1 or more")
        self.limits = runner.limits
        self._runner, self._on_result = runner, on_result
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="sandbox")
        self._lock = threading.Lock()
        self._latencies: deque[float] = deque(maxlen=_MAX_LATENCIES)

    def check_all(self, checks: Iterable[tuple[str, Sequence[str], Sequence[Case]]]) -> list[Verdict]:
        """Returns the verdicts on (program, tests, cases), in order."""
        return self._wait([self._threads.submit(self._check, *check) for check in checks])

    def find_stubs(self, rows: Iterable[Sequence[str]]) -> list[list[str]]:
        """Returns for the tests of each row, in order, the programs without content that pass: see `find_stubs`."""
        return self._wait([self._threads.submit(find_stubs, self._runner, tests) for tests in rows])

    def _wait(self, futures: list[Future[Any]]) -> list[Any]:
        found = []
        try:
            for future in futures:
                found.append(future.result())
                self._on_result()
            return found
        finally:
            for future in futures:  # after an error or Ctrl-C, waiting checks do not start
                future.cancel()

    def metrics(self) -> dict[str, float]:
        """Returns the median and the 95th percentile of the latency since the last call; empty if there was no check.

        The latency is that of the last 10,000 checks, in seconds; it does not include the wait in the queue.
        """
        with self._lock:
            latencies = sorted(self._latencies)
            self._latencies.clear()
        if not latencies:
            return {}
        return {
            "seconds/median": latencies[len(latencies) // 2],
            "seconds/p95": latencies[int(len(latencies) * 0.95)],
        }

    def close(self) -> None:
        """Ends running programs; waiting ones do not start. It may be called more than once."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._runner.close()
        self._threads.shutdown()

    def _check(self, program: str, tests: Sequence[str], cases: Sequence[Case]) -> Verdict:
        started = time.monotonic()
        verdict = self._runner.check(program, tests, cases)
        with self._lock:
            self._latencies.append(time.monotonic() - started)
        return verdict
