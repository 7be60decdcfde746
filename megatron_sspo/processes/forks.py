"""Forks of this process, which share what it has imported."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator

from megatron_sspo.processes.parent import exit_with_parent
from megatron_sspo.processes.surroundings import environment_with

_TOKENIZERS = "TOKENIZERS_PARALLELISM"
_PR_SET_NAME = 15  # linux/prctl.h


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """Keeps torch and the tokenizers from starting threads, so that this process can be forked.

    A fork has none of its parent's threads, so its next parallel loop would wait for them forever.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with environment_with({_TOKENIZERS: "false"}):
            yield
    finally:
        torch.set_num_threads(threads)


def may_fork() -> bool:
    """Returns whether this process can be forked: it has one thread, and no CUDA, which does not work in a fork."""
    import torch

    return len(os.listdir("/proc/self/task")) == 1 and not torch.cuda.is_available()


def fork(run: Callable[[], int], name: str) -> "Fork":
    """Forks this process; the fork calls `run`, exits with its result, and dies with this process.

    `ps -o comm` and `top` show its name.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return Fork(pid)
    exit_with_parent(parent)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
    sys.exit(run())


class Fork:
    """A forked process, with the methods of `subprocess.Popen` that wait for it and end it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, negative after a signal; None while the process runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Waits for the end of the process, and returns its exit code."""
        return self._wait(0)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self._pid, number)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code
