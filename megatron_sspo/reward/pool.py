"""Runs a function on items that may hang, crash or never end, in processes that can be killed.

`pebble.ProcessPool` (5.2.3) is not enough for this: its deadlines follow the system's clock, which may jump; while it
stops one worker (SIGTERM, then seconds of grace), no other deadline is checked; and a worker's own children stay alive.
"""

import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from megatron_sspo.processes.hang import wait_for_results
from megatron_sspo.processes.parent import exit_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

_START_SECONDS = 300.0  # for a worker's interpreter and imports, on a busy machine with a cold network disk

_log = logging.getLogger(__name__)


class DeadlinePool(Generic[Item, Result]):
    """`num_workers` processes that apply `function` to items, each within `deadline_seconds` of wall-clock time.

    An item that exceeds its deadline, or that crashes its worker, gets `failure_value`. Its worker is killed and
    replaced; other items are not affected. The deadline starts when a worker that has finished its imports receives the
    item.

    The workers are fresh interpreters: nothing is forked from a process that holds threads or a GPU, and `__main__` is
    not imported again. They import `function` and `prepare` by name, so both have to be at the top level of a module
    that imports little. The module may be a file that a run names by its path. Workers start with the pool, end with
    `close`, and are killed by the kernel when this process dies.

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
        if num_workers < 1 or deadline_seconds <= 0:
            raise ValueError(f"{num_workers=} must be 1 or more, and {deadline_seconds=} above 0")
        self._job = pickle.dumps((_files_of(function, prepare), pickle.dumps((function, prepare))))
        self._deadline_seconds = deadline_seconds
        self._failure_value = failure_value
        self._tasks: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._closing, self._close_signal = os.pipe()  # one byte, which nobody reads, wakes all threads
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
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            futures: list[Future[Result]] = []
            for item in items:
                futures.append(Future())
                self._tasks.put((item, futures[-1]))
        try:
            return wait_for_results(futures)
        finally:
            for future in futures:  # after an error or Ctrl-C, waiting items do not start
                future.cancel()

    def close(self) -> None:
        """Kills the workers, busy or not, and waits until they have ended. It may be called more than once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._close_signal, b"x")
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self._closing)
        os.close(self._close_signal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        """Runs the thread of one worker, which starts, kills and replaces the worker and sends it items.

        The kernel's parent-death signal is bound to the thread that started the process, not to that thread's process.
        So this thread, which lives as long as the pool, has to start the worker.
        """
        worker = _Worker(self._job, self._closing)
        with contextlib.suppress(OSError):  # no process could be started: the first item retries, and reports the error
            worker.start()
        while (task := self._tasks.get()) is not None:
            item, future = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._run_item(worker, item))
            except Exception as error:
                future.set_exception(error)
        worker.kill()

    def _run_item(self, worker: "_Worker", item: Item) -> Result:
        if self._closed:
            raise RuntimeError("the pool was closed before this item was done")
        worker.ensure_ready()
        worker.send(item)
        try:
            succeeded, value = worker.receive(self._deadline_seconds)
        except (TimeoutError, EOFError, ConnectionError) as error:
            worker.kill()
            cause = f"was not done after {self._deadline_seconds} s" if isinstance(error, TimeoutError) else "crashed"
            _log.warning("an item %s, and counts as %r: %.200r", cause, self._failure_value, item)
            return self._failure_value
        if not succeeded:
            raise RuntimeError(f"a worker failed:\n{value}")
        return value


class _Worker:
    """One worker process and this side of its pipe."""

    def __init__(self, job: bytes, closing: int) -> None:
        self._job = job
        self._closing = closing
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ready = False

    def start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    # -P: a file in the current folder must not shadow a module.
                    [sys.executable, "-P", "-c", _WORKER_PROGRAM, str(theirs.fileno()), str(os.getpid())],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # libraries that print would spoil the progress bar
                    start_new_session=True,  # Ctrl-C goes to the parent only; kill() reaches the worker's own children
                )
            except OSError:
                ours.close()
                raise
        self._connection, self._ready = ours, False
        ours.send_bytes(self._job)

    def ensure_ready(self) -> None:
        """Starts the worker again if it has ended, and waits until its imports are done."""
        if self._process is None or self._process.poll() is not None:
            self.kill()
            self.start()
        if self._ready:
            return
        try:
            succeeded, trace = self.receive(_START_SECONDS)
        except (TimeoutError, EOFError, ConnectionError) as error:
            self.kill()
            raise RuntimeError(f"a worker did not start ({type(error).__name__}); see its stderr output") from error
        if not succeeded:
            self.kill()
            raise RuntimeError(f"a worker did not start:\n{trace}")
        self._ready = True

    def send(self, item: Any) -> None:
        assert self._connection is not None
        with contextlib.suppress(ConnectionError):  # the worker has just died: receive() reports it
            self._connection.send(item)

    def receive(self, seconds: float) -> tuple[bool, Any]:
        assert self._connection is not None
        readable = wait([self._connection, self._closing], seconds)
        if self._connection in readable:
            return self._connection.recv()
        if readable:
            raise RuntimeError("the pool was closed before this item was done")
        raise TimeoutError

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _files_of(*functions: Callable[..., Any] | None) -> list[str]:
    """Returns the files of functions that no import would find: those that a run names by their paths."""
    from megatron_sspo.config.resolve import FILE_MODULE

    modules = [sys.modules.get(getattr(function, "__module__", "")) for function in functions]
    return [
        str(module.__file__) for module in modules if module is not None and module.__name__.startswith(FILE_MODULE)
    ]


_WORKER_PROGRAM = "from megatron_sspo.reward.pool import _worker_main; _worker_main()"


def _worker_main() -> None:
    """Runs a worker process: reads a job, then items, and replies to each until the parent closes the pipe."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    exit_with_parent(parent)  # only the parent enforces deadlines
    for number in (signal.SIGTERM, signal.SIGUSR1):  # Slurm sends them to all processes; the parent decides what to do
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(descriptor)
    try:
        files, job = pickle.loads(connection.recv_bytes())
        if files:
            from megatron_sspo.config.resolve import load_file

            for file in files:
                load_file(Path(file))
        function, prepare = pickle.loads(job)
        if prepare is not None:
            prepare()
    except Exception:
        connection.send((False, traceback.format_exc()))
        return
    connection.send((True, ""))
    while True:
        try:
            item = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            connection.send((True, function(item)))
        except Exception:
            connection.send((False, traceback.format_exc()))
