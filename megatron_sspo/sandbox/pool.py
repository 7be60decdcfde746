"""Runs programs in a bounded number of sandboxes at a time, for threads and for asyncio, and measures them."""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from megatron_sspo.errors import UserError
from megatron_sspo.sandbox.types import Case, Runner, SandboxResult, Session, Verdict

Item = TypeVar("Item")
Result = TypeVar("Result")

_LATENCIES_KEPT = 10_000


class SandboxPool:
    """Bounds how many sandboxes run at a time; the others wait in a queue.

    Args:
        runner: a `Sandbox` or a `RemoteSandbox`; it is closed with the pool.
        concurrency: the number of sandboxes at a time. More than the number of cores makes each one slower.
    """

    def __init__(self, runner: Runner, concurrency: int) -> None:
        if concurrency < 1:
            raise UserError(f"the sandbox pool's concurrency is {concurrency}: it has to be 1 or more")
        self._runner = runner
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="sandbox")
        self._lock = threading.Lock()
        self._ended: Counter[str] = Counter()
        self._latencies: deque[float] = deque(maxlen=_LATENCIES_KEPT)

    async def run(self, program: str, stdin: str = "", files: Mapping[str, str] | None = None) -> SandboxResult:
        """Runs a program; see `Runner.run`."""
        return await asyncio.wrap_future(self._submit(lambda: self._run(program, stdin, files)))

    async def check(self, program: str, tests: Sequence[str] = (), cases: Sequence[Case] = ()) -> Verdict:
        """Checks a program; see `Runner.check`."""
        return await asyncio.wrap_future(self._submit(lambda: self._check(program, tests, cases)))

    async def session(self) -> "PooledSession":
        """Starts a session; see `Runner.session`. Only its running cells count for the bound, not the session."""
        return PooledSession(await asyncio.wrap_future(self._submit(self._runner.session)), self._submit)

    def check_all(self, checks: Iterable[tuple[str, Sequence[str], Sequence[Case]]]) -> list[Verdict]:
        """Returns the verdicts on (program, tests, cases), in order; for callers without an event loop."""
        futures = [self._submit(lambda check=check: self._check(*check)) for check in checks]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:  # after an error or Ctrl-C, waiting checks do not start
                future.cancel()

    def metrics(self) -> dict[str, float]:
        """Returns counts since the last call, by the reason of the end, and the latency's median and 95th percentile.

        The latency is that of the last 10,000 programs, in seconds; it does not include the wait in the queue.
        """
        with self._lock:
            ended, latencies = self._ended, sorted(self._latencies)
            self._ended, self._latencies = Counter(), deque(maxlen=_LATENCIES_KEPT)
        found = {"count": float(ended.total()), **{f"ended/{reason}": float(n) for reason, n in sorted(ended.items())}}
        if latencies:
            found["seconds/median"] = latencies[len(latencies) // 2]
            found["seconds/p95"] = latencies[int(len(latencies) * 0.95)]
        return found

    def close(self) -> None:
        """Ends running programs; waiting ones do not start. It may be called more than once."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._runner.close()
        self._threads.shutdown()

    def _submit(self, work: Callable[[], Result]) -> Future[Result]:
        return self._threads.submit(work)

    def _run(self, program: str, stdin: str, files: Mapping[str, str] | None) -> SandboxResult:
        return self._timed(lambda: self._runner.run(program, stdin, files), lambda result: result.ended)

    def _check(self, program: str, tests: Sequence[str], cases: Sequence[Case]) -> Verdict:
        return self._timed(lambda: self._runner.check(program, tests, cases), lambda verdict: verdict.reason)

    def _timed(self, work: Callable[[], Result], reason: Callable[[Result], str]) -> Result:
        started = time.monotonic()
        result = work()
        with self._lock:
            self._ended[reason(result)] += 1
            self._latencies.append(time.monotonic() - started)
        return result


class PooledSession:
    """A session whose cells wait in the queue of a pool."""

    def __init__(self, session: Session, submit: Callable[[Callable[[], str]], Future[str]]) -> None:
        self._session = session
        self._submit = submit

    @property
    def is_alive(self) -> bool:
        """Returns whether the next cell will be executed."""
        return self._session.is_alive

    async def execute(self, code: str, seconds: float | None = None) -> str:
        """Runs a cell; see `Session.execute`."""
        return await asyncio.wrap_future(self._submit(lambda: self._session.execute(code, seconds)))

    async def close(self) -> None:
        """Ends the session; see `Session.close`."""
        await asyncio.to_thread(self._session.close)
