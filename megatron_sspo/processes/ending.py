"""Ends a process whose threads or child processes do not end by themselves."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

_END_SECONDS, _POLL_SECONDS = 60.0, 0.25


@contextlib.contextmanager
def unfinished() -> Iterator[None]:
    """While the body runs, `os._exit(0)` in this process ends it with exit code 1: its work is not done.

    A reward, or a library that it uses, may call it. Processes that are forked from this one are not affected.
    """
    process, leave = os.getpid(), os._exit

    def leave_unfinished(status: int) -> NoReturn:
        leave(1 if status == 0 and os.getpid() == process else status)

    os._exit = leave_unfinished
    try:
        yield
    finally:
        os._exit = leave


def limit_end(code: int) -> None:
    """Limits the time in which this process ends, once its main thread has returned.

    Python waits without limit for threads that are not daemons, for the workers of its executors, and for the processes
    of `multiprocessing`. A reward, an environment or a tracker may leave some that never end. After a minute, one
    sentence names them, the processes are killed, and this process ends with `code`. Where nothing is left, this
    function starts nothing.
    """
    if _threads_left() or _processes_left():
        threading.Thread(target=_end_late, args=(code, _outermost()), name="end", daemon=True).start()


def _threads_left() -> list[threading.Thread]:
    main = threading.main_thread()
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]


def _processes_left() -> list[Any]:
    if "multiprocessing.process" not in sys.modules:
        return []
    import multiprocessing

    return multiprocessing.active_children()


def _outermost() -> FrameType | None:
    """Returns the outermost frame of the main thread, which is another one once Python waits for what is left."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _end_late(code: int, program: FrameType | None) -> None:
    while _outermost() is program:  # a program that has called the command line as a function
        time.sleep(_POLL_SECONDS)
    time.sleep(_END_SECONDS)
    processes = _processes_left()
    left = [f"thread {thread.name}" for thread in _threads_left()]
    left += [f"process {process.pid} ({process.name})" for process in processes]
    print(
        f"megatron-sspo: the command has done its work, but {', '.join(left) or 'its clean-up'} did not end within "
        f"{_END_SECONDS:.0f} s, and is given up: a reward, an environment or a tracker has started it",
        file=sys.stderr,
        flush=True,
    )
    for process in processes:
        process.kill()
    os._exit(code)
