"""Processes that are forked from one which has imported the package, because that takes some five seconds of a core."""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

forkserver: Any = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(["tests.preloaded"])


class Python:
    """A new interpreter's session of its own, with a part of the interface of `subprocess.Popen`.

    /proc/PID/environ shows the environment of the process from which it is forked, and not `environment`.

    Args:
        arguments: what follows `python`: "-m", a module and its arguments; "-c", a program and its arguments; or a
            script and its arguments.
        folder: the working folder.

    Attributes:
        pid: the process, which is also the number of its session.
        returncode: the exit code, or −n after signal n; None while it runs.
    """

    def __init__(self, *arguments: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # standard output, standard error  # noqa: SIM115
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._files]
        self._process = forkserver.Process(target=_run, args=(arguments, folder, {**environment}, paths))
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        """Returns `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end of the process, and returns its standard output and standard error."""
        self.wait(timeout)
        return self._read(0), self._read(1)

    def wait_for_output(self, text: str, timeout: float = 120.0) -> None:
        """Waits until the process has written a text to its standard output, and checks that it does."""
        give_up_at = time.monotonic() + timeout
        while text not in self._read(0):
            assert self.returncode is None, self.communicate()
            assert time.monotonic() < give_up_at, (text, self._read(0), self._read(1))
            time.sleep(0.02)

    def _read(self, number: int) -> str:
        file = self._files[number]
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode("utf-8", "replace")

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, if it has not ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_python(*arguments: str, folder: Path, timeout: float) -> "subprocess.CompletedProcess[str]":
    """Returns what `subprocess.run` would return for a `Python` with this environment."""
    process = Python(*arguments, folder=folder, environment=os.environ)
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(arguments, process.wait(), out, err)


def _run(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Runs a module or a script in this process, as a new interpreter would."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, *(os.open(path, os.O_WRONLY | os.O_APPEND) for path in outputs))):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  (open until the process ends)
        for number, mode in enumerate("rww")
    )
    try:
        if arguments[0] == "-m":
            sys.argv = [*arguments[1:]]
            sys.path.insert(0, str(folder))
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [*arguments]
            sys.path.insert(0, str(Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing does not call them
