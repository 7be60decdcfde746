"""Forks of this process, which share what it has imported."""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from megatron_sspo.errors import UserError
from megatron_sspo.processes.parent import exit_with_parent
from megatron_sspo.processes.surroundings import environment_with

_TOKENIZERS = "TOKENIZERS_PARALLELISM"
_PR_SET_NAME = 15  # linux/prctl.h
CPU_SECONDS = 120.0  # of a trial: limits far above what sound files need
_MEMORY_BYTES = 8 * 2**30


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
    """Returns whether this process can be forked: it has a single thread and no CUDA, which does not work in a fork."""
    import torch

    return is_single_threaded() and not torch.cuda.is_available()


def is_single_threaded() -> bool:
    """Returns whether this process is known to have a single thread; a fork has none of the others."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


def fork(run: Callable[[], int], name: str) -> "Fork":
    """Forks this process; the fork calls `run`, exits with its result, and dies with this process.

    Args:
        name: what `ps -o comm` and `top` show for the fork.
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


def exceeded_limit(work: Callable[[], object], name: str, *, more_seconds: float = 0.0) -> str:
    """Tries a function in a fork, within limits of processor time and memory.

    Native code, such as that of pickle, Jinja's loops or the tokenizers, cannot be interrupted in this process. Errors
    are left to the caller, who then calls the same function here. Where this process has several threads, it cannot be
    forked, and nothing is tried.

    Args:
        name: what `ps -o comm` and `top` show for the fork.
        more_seconds: seconds of processor time on top of `CPU_SECONDS`.

    Returns:
        The limit that was exceeded, in words; "" if none was.

    Raises:
        UserError: the fork was killed from outside, which says nothing about the function.
    """
    if not is_single_threaded():
        return ""
    seconds = CPU_SECONDS + more_seconds
    code = fork(lambda: _try(work, seconds), name).wait()
    if code == -signal.SIGXCPU:
        return f"{seconds:.0f} s of processor time"
    if code == -signal.SIGKILL:
        raise UserError(
            f"the process that tries the {name} was killed, as the kernel does when memory runs out: start again "
            "where more memory is free"
        )
    return "the memory that it may take" if code else ""


def _try(work: Callable[[], object], seconds: float) -> NoReturn:
    """Ends this fork with 1 if memory ran out, and with 0 after any other error: nothing may return from here."""
    code = 0
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_CPU, round(seconds))
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + _MEMORY_BYTES)
        work()
    except MemoryError:
        code = 1
    except BaseException:  # a panic of a Rust library is not an Exception
        pass
    finally:
        os._exit(code)


def _limit(kind: int, value: int) -> None:
    """Lowers a limit of this process, as far as it is not lower already."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


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
