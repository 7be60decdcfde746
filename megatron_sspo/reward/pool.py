"""Runs a function on items that may hang, crash or never end, in processes that can be killed."""

import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from typing import Any, Generic, TypeVar

from megatron_sspo.processes.hang import wait_for_results
from megatron_sspo.processes.parent import exit_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

_START_SECONDS = 300.0  # for a worker's interpreter and imports, on a busy machine with a cold network disk
_CLOSE_SECONDS = 0.1  # the longest time after which a waiting thread notices `close`
_CLOSED = "the pool was closed before this item was done"
_log = logging.getLogger(__name__)


class DeadlinePool(contextlib.AbstractContextManager, Generic[Item, Result]):
    """`num_workers` processes that apply `function` to items, each within `deadline_seconds` of wall-clock time.

    An item that exceeds its deadline, or that crashes its worker, gets `failure_value`. Its worker is killed and
    replaced; other items are not affected. The deadline starts when a worker that has finished its imports receives the
    item.

    The workers are fresh interpreters: nothing is forked from a process that holds threads or a GPU, and `__main__` is
    not imported again. They import `function` and `prepare` by name, so both have to be at the top level of a module
    that imports little. Workers start with the pool, end with `close`, and are killed by the kernel when this process
    dies.

    Args:
        function: the function that is applied to each item, in a worker's main thread.
        num_workers: the number of processes, and so of items at a time.
        deadline_seconds: the time limit of one item.
        failure_value: the result of an item that exceeded its deadline or crashed its worker.
        prepare: a function for imports and limits, called once in each new worker, before any deadline starts.
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        num_workers: int,
        deadline_seconds: float,
        failure_value: Result,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._job = pickle.dumps((function, prepare))
        self._deadline_seconds = deadline_seconds
        self._failure_value = failure_value
        self._tasks: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, name=f"deadline-pool-{index}", daemon=True)
            for index in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def map(self, items: Iterable[Item]) -> list[Result]:
        """Returns the results in the items' order. It may be called from several threads at once.

        Raises:
            RuntimeError: `function` or `prepare` raised (the message has the worker's traceback), or the pool is
                closed, before or during the call.
        """
        futures: list[Future[Result]] = []
        for item in items:
            futures.append(Future())
            self._tasks.put((item, futures[-1]))
        if self._closed.is_set():
            raise RuntimeError("the pool is closed")
        try:
            return wait_for_results(futures)
        finally:
            for future in futures:  # after an error or Ctrl-C, waiting items do not start
                future.cancel()

    def close(self) -> None:
        """Kills the workers, busy or not, and waits until they have ended. It may be called more than once."""
        self._closed.set()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        """Runs the thread of one worker, which starts, kills and replaces the worker and sends it items.

        The kernel's parent-death signal is bound to the thread that started the process, not to that thread's process.
        So this thread, which lives as long as the pool, has to start the worker.
        """
        worker: _Worker | None = None
        with contextlib.suppress(OSError):  # no process could be started: the first item retries, and reports the error
            worker = _Worker(self._job, self._closed)
        while (task := self._tasks.get()) is not None:
            item, future = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if self._closed.is_set():
                    raise RuntimeError(_CLOSED)
                if worker is None or worker.has_ended():
                    worker = _Worker(self._job, self._closed)
                worker.wait_until_ready()
                future.set_result(worker.run(item, self._deadline_seconds))
            except (TimeoutError, EOFError, ConnectionError) as error:
                cause = (
                    f"was not done after {self._deadline_seconds} s" if isinstance(error, TimeoutError) else "crashed"
                )
                _log.warning("an item %s, and counts as %r: %.200r", cause, self._failure_value, item)
                assert worker is not None
                worker.kill()
                worker = None
                future.set_result(self._failure_value)
            except Exception as error:
                future.set_exception(error)
                if worker is not None and not worker.is_ready:
                    worker.kill()
                    worker = None
        if worker is not None:
            worker.kill()


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


_WORKER_PROGRAM = "from megatron_sspo.reward.pool import _worker_main; _worker_main()"


def _worker_main() -> None:
    """Runs a worker process: reads a job, then items, and replies to each until the parent closes the pipe."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    exit_with_parent(parent)  # only the parent enforces deadlines
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
