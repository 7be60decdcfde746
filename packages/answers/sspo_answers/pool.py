"""Runs a function on items that may hang, crash or never end, in processes that can be killed."""

import contextlib
import ctypes
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_START_SECONDS = 300.0  # for a worker's interpreter and imports, on a busy machine with a cold network disk
_CLOSE_SECONDS = 0.1  # the longest time after which a waiting thread notices `close`
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CLOSED = "the pool was closed before this item was done"
_log = logging.getLogger(__name__)


class DeadlinePool(contextlib.AbstractContextManager, Generic[Item, Result]):
    """`num_workers` processes that apply `function` to items, each within `deadline_seconds` of wall-clock time.

    An item that exceeds its deadline, or that crashes its worker, gets `failure_value`. Its worker is killed and
    replaced; other items are not affected. The deadline starts when a worker that has finished its imports receives the
    item.

    The workers are fresh interpreters: nothing is forked from a process that holds threads or a GPU, and `__main__` is
    not imported again. They import `function` and `prepare` by name, so both have to be at the top level of a module
    that imports little. `prepare` is for imports and limits, and called once in each new worker, before any deadline
    starts. Workers start with the pool, end with `close`, and are killed by the kernel when this process dies. `tick`
    is called after each result that `map` waits for.
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        num_workers: int,
        deadline_seconds: float,
        failure_value: Result,
        prepare: Callable[[], None] | None = None,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        self._job = pickle.dumps((function, prepare))
        self._deadline_seconds, self._failure_value, self._tick = deadline_seconds, failure_value, tick
        self._closed = threading.Event()
        self._workers: dict[int, _Worker] = {}  # by the threads that have started them
        # The kernel's parent-death signal is bound to the thread that started a process, so threads start the workers.
        self._threads = ThreadPoolExecutor(num_workers, "deadline-pool", initializer=self._start)
        for _ in range(num_workers):
            self._threads.submit(int)

    def map(self, items: Iterable[Item]) -> list[Result]:
        """Returns the results in the items' order. It may be called from several threads at once.

        Raises RuntimeError if `function` or `prepare` raised (the message has the worker's traceback), or the pool is
        closed, before or during the call.
        """
        if self._closed.is_set():
            raise RuntimeError("the pool is closed")
        futures = [self._threads.submit(self._run, item) for item in items]
        found = []
        try:
            for future in futures:
                found.append(future.result())
                self._tick()
            return found
        except CancelledError:
            raise RuntimeError(_CLOSED) from None
        finally:
            for future in futures:  # after an error or Ctrl-C, waiting items do not start
                future.cancel()

    def close(self) -> None:
        """Kills the workers, busy or not, and waits until they have ended. It may be called more than once."""
        self._closed.set()
        self._threads.shutdown(cancel_futures=True)
        while self._workers:
            self._workers.popitem()[1].kill()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        with contextlib.suppress(OSError):  # no process could be started: the first item retries, and reports the error
            self._workers[threading.get_ident()] = _Worker(self._job, self._closed)

    def _run(self, item: Item) -> Result:
        """Applies the function in this thread's worker, which is started anew if it has ended."""
        own = threading.get_ident()
        if own not in self._workers or self._workers[own].has_ended():
            self._workers[own] = _Worker(self._job, self._closed)
        worker = self._workers[own]
        try:
            worker.wait_until_ready()
            return worker.run(item, self._deadline_seconds)
        except (TimeoutError, EOFError, ConnectionError) as error:
            is_late = isinstance(error, TimeoutError)
            cause = f"was not done after {self._deadline_seconds} s" if is_late else "crashed"
            _log.warning("an item %s, and counts as %r: %.200r", cause, self._failure_value, item)
            self._workers.pop(own).kill()
            return self._failure_value
        except Exception:
            if not worker.is_ready:
                self._workers.pop(own).kill()
            raise


class _Worker:
    """One worker process and this side of its pipe."""

    def __init__(self, job: bytes, closed: threading.Event) -> None:
        self._closed = closed
        self.is_ready = False
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                # -P: a file in the current folder must not shadow a module.
                [sys.executable, "-P", "-c", _WORKER_PROGRAM, str(theirs.fileno()), str(os.getpid())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # libraries that print would spoil the progress bar
                start_new_session=True,  # Ctrl-C goes to the parent only; kill() reaches the worker's own children
            )
        self._connection.send_bytes(job)

    def has_ended(self) -> bool:
        if self._process.poll() is None:
            return False
        self.kill()
        return True

    def wait_until_ready(self) -> None:
        """Waits until the worker's imports are done."""
        if not self.is_ready:
            try:
                self._receive(_START_SECONDS)
            except (TimeoutError, EOFError, ConnectionError) as error:
                raise RuntimeError(f"a worker did not start ({type(error).__name__}); see its stderr output") from error
            self.is_ready = True

    def run(self, item: Any, seconds: float) -> Any:
        """Returns the result of an item; raises TimeoutError, or EOFError or ConnectionError if the worker has died."""
        self._connection.send(item)
        return self._receive(seconds)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()

    def _receive(self, seconds: float) -> Any:
        ends = time.monotonic() + seconds
        while not self._connection.poll(max(0.0, min(_CLOSE_SECONDS, ends - time.monotonic()))):
            if self._closed.is_set():
                raise RuntimeError(_CLOSED)
            if time.monotonic() >= ends:
                raise TimeoutError
        succeeded, value = self._connection.recv()
        if not succeeded:
            raise RuntimeError(f"a worker failed:\n{value}")
        return value


_WORKER_PROGRAM = "from sspo_answers.pool import _worker_main; _worker_main()"


def _worker_main() -> None:
    """Runs a worker process: reads a job, then items, and replies to each until the parent closes the pipe."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # only the parent enforces deadlines
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGUSR1):  # Slurm sends them to all processes; the parent decides what to do
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(descriptor)

    def reply(function: Callable[..., Any], *given: Any) -> None:
        try:
            answer = (True, function(*given))
        except Exception:
            answer = (False, traceback.format_exc())
        connection.send(answer)

    with contextlib.suppress(EOFError, ConnectionError):
        function, prepare = pickle.loads(connection.recv_bytes())
        reply(prepare or (lambda: None))
        while True:
            reply(function, connection.recv())
