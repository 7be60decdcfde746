"""One sandbox on this machine, from its start to the death of its last process."""

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sspo_sandbox.cgroup import Slot
from sspo_sandbox.image import DEVICES, PYTHON, Image
from sspo_sandbox.types import Limits, SandboxError

_DEATH_SECONDS = 30.0  # for the kernel to end killed processes; far more than it needs
_INSIDE_UID = "1000"
START_SECONDS = 60.0  # for bubblewrap and Python to start on a busy machine
STARTED = b"+"  # the first byte in the channel: the program and its clock start here

_START_PROGRAM = "import sys; sys.path.append('/sandbox'); from sspo_sandbox.inside.start import main; main()"

_SESSION_CPU_CELLS = 100  # a session's CPU limit, in cells that use all of their time

ENVIRONMENT = {
    "PATH": "/python/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # one thread per core would exceed the limit on processes
    "OPENBLAS_NUM_THREADS": "1",
}


def find_bubblewrap() -> str:
    """Returns the path of bubblewrap. Raises SandboxError if it is not installed."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxError(
            "the sandbox needs bubblewrap, and there is no bwrap in PATH: apt-get install bubblewrap "
            "(dnf install bubblewrap), or name a remote sandbox by its url"
        )
    return path


class SandboxProcess:
    """The processes of one sandbox, and this side of its pipes.

    A single thread has to make, use and end the object, and has to outlive it: the kernel kills bubblewrap when the
    *thread* that started it ends.

    Attributes:
        stdin: the pipe that the program reads its input from; None if the whole input was given.
        stdout, stderr, channel: non-blocking pipes to read from. The trusted code inside writes to `channel`.
        seconds: after `end`, the time from the start of the program to the death of the last process.

    Args:
        mode: the mode of the code inside: see `inside/start.py`.
        job: the input of the code inside, passed in a sealed memory file.
        stdin: the program's whole input; None opens a pipe instead.
    """

    def __init__(
        self,
        bubblewrap: str,
        image: Image,
        slot: Slot,
        limits: Limits,
        mode: str,
        job: Mapping[str, Any],
        stdin: str | None,
    ) -> None:
        self._slot = slot
        self._lock = threading.RLock()
        self._is_killed = self._has_ended = self._out_of_memory = False
        self._child: int | None = None  # a pidfd of the sandbox's first process
        self._status_text = b""
        self.seconds = 0.0
        self._started = time.monotonic()
        self._kills_before = slot.num_memory_kills()
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as if_it_fails:
            stdin_file = _closed_by(stack, _memory_file(stdin or ""))
            job_file = _closed_by(stack, _memory_file(json.dumps(job)))
            seccomp_file = _closed_by(stack, os.open(image.seccomp, os.O_RDONLY | os.O_CLOEXEC))
            self.status, status = _pipe(stack, if_it_fails)
            self.channel, channel = _pipe(stack, if_it_fails)
            command = [
                *slot.command,
                *_bubblewrap_command(bubblewrap, image, limits, seccomp=seccomp_file, status=status),
                *[PYTHON, "-I", "-S", "-B", "-X", "utf8", "-c", _START_PROGRAM, mode, str(job_file), str(channel)],
                json.dumps(_resource_limits(limits, mode)),
            ]
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if stdin is None else stdin_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},  # programs inside can read bubblewrap's environment
                cwd="/",
                pass_fds=[job_file, seccomp_file, status, channel],
                start_new_session=True,
                bufsize=0,
            )
            if_it_fails.pop_all()
        assert self._popen.stdout and self._popen.stderr
        self.stdin = self._popen.stdin
        self.stdout, self.stderr = self._popen.stdout.fileno(), self._popen.stderr.fileno()
        for descriptor in (self.stdout, self.stderr):
            os.fchmod(descriptor, 0o622)  # the sandbox has another user, whose programs may open /dev/stdout
        for descriptor in (self.stdout, self.stderr, self.channel, self.status):
            os.set_blocking(descriptor, False)

    def kill(self) -> None:
        """Sends SIGKILL, without waiting. Any thread may call it until `close`.

        The first process of the sandbox is its init: all others die with it, and bubblewrap, its parent, reaps it and
        ends. Bubblewrap itself is not killed: its child would become a zombie of the machine's init, which in many
        containers is a program that reaps nothing. If the first process is not known yet, `read_status` kills it.
        """
        with self._lock:
            if self._has_ended:
                return
            self._is_killed = True
            self.read_status()
            self._kill_child()

    def _kill_child(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child, signal.SIGKILL)

    def end(self) -> bool:
        """Kills all processes that are left and waits for the last one to die. The pipes can still be read.

        Returns:
            whether the kernel killed a process for lack of memory.

        Raises:
            RuntimeError: a process survived SIGKILL, which only a broken kernel allows.
        """
        if self._has_ended:
            return self._out_of_memory
        self.kill()
        deadline = time.monotonic() + START_SECONDS
        while self._child is None and self.read_status() and (left := deadline - time.monotonic()) > 0:
            select.select([self.status], [], [], left)
        try:
            self._popen.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait(_DEATH_SECONDS)
        with self._lock:
            self._has_ended = True
        self.seconds = time.monotonic() - self._started
        self.read_status()
        if self._child is not None:
            self._kill_child()
            if not select.select([self._child], [], [], _DEATH_SECONDS)[0]:
                raise RuntimeError(f"a sandbox's process did not die within {_DEATH_SECONDS:.0f} s of its SIGKILL")
        self._slot.kill()
        self._out_of_memory = self._slot.num_memory_kills() > self._kills_before
        return self._out_of_memory

    def close(self) -> None:
        """Closes the pipes. Call `end` first."""
        for descriptor in (self.channel, self.status, self._child):
            if descriptor is not None:
                os.close(descriptor)
        for file in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def exit_code(self) -> int | None:
        """Returns the program's exit code as bubblewrap reports it; None if it reported none, as when killed."""
        found = re.search(rb'"exit-code": (-?\d+)', self._status_text)
        return int(found[1]) if found else None

    def was_killed(self, cpu_seconds: int, *, has_judge: bool) -> bool:
        """Returns whether a process outside has killed bubblewrap or the judge. Call `end` first.

        No process in the sandbox can do this: the first process is its init, which only a SIGKILL from outside can
        kill. The exception is its limit on CPU time, after which the kernel sends SIGKILL too.

        Args:
            has_judge: whether the first process is the judge; if not, it ends as the program did, maybe by SIGKILL.
        """
        exit_code = self.exit_code()
        max_cpu_seconds = self.seconds * (os.cpu_count() or 1)
        is_killed = has_judge and exit_code == 128 + signal.SIGKILL and max_cpu_seconds < cpu_seconds
        return exit_code is None or is_killed

    def start_clock(self) -> None:
        """Starts the clock: making the sandbox does not count as the program's time."""
        self._started = time.monotonic()

    def read_status(self) -> bool:
        """Reads bubblewrap's status, and opens a pidfd of the first process; returns False if bubblewrap has ended."""
        with self._lock:
            while True:
                try:
                    piece = os.read(self.status, 4096)
                except BlockingIOError:
                    return True
                if not piece:
                    return False
                self._status_text += piece
                found = re.search(rb'"child-pid": (\d+)', self._status_text)
                if found and self._child is None:
                    with contextlib.suppress(ProcessLookupError):
                        self._child = os.pidfd_open(int(found[1]))
                    if self._is_killed:
                        self._kill_child()


class LimitedPipe:
    """The output of a pipe, up to a limit."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.content = bytearray()
        self._limit = limit

    def read(self) -> Literal["open", "closed", "over limit"]:
        """Reads all that is available now."""
        while True:
            try:
                piece = os.read(self.descriptor, 65536)
            except BlockingIOError:
                return "open"
            if not piece:
                return "closed"
            self.content += piece
            if len(self.content) > self._limit:
                del self.content[self._limit :]
                return "over limit"


def read_until(
    process: SandboxProcess,
    pipes: Sequence[LimitedPipe],
    channel: LimitedPipe,
    seconds: float,
    *,
    request: bytes = b"",
    is_done: Callable[[], bool] = lambda: False,
) -> Literal["time", "output", "ended", "done"]:
    """Reads pipes until bubblewrap ends, a limit is reached, or `is_done`. It kills nothing.

    Args:
        seconds: the time limit, from the start of the program.
        request: bytes that are written to the program's input meanwhile.
    """
    has_started = channel.content.startswith(STARTED)
    deadline = time.monotonic() + (seconds if has_started else START_SECONDS)
    poller = select.poll()
    by_descriptor = {pipe.descriptor: pipe for pipe in pipes}
    for descriptor in (process.status, *by_descriptor):
        poller.register(descriptor, select.POLLIN)
    stdin = process.stdin.fileno() if request and process.stdin else -1
    if request:
        os.set_blocking(stdin, False)
        poller.register(stdin, select.POLLOUT)
    while (left := deadline - time.monotonic()) > 0:
        ready = {descriptor for descriptor, _ in poller.poll(left * 1000)}
        if stdin in ready:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                request = request[os.write(stdin, request) :]
            if not request:
                poller.unregister(stdin)
        for descriptor in ready & by_descriptor.keys():
            state = by_descriptor[descriptor].read()
            if state == "over limit":
                return "output"
            if state == "closed":
                poller.unregister(descriptor)
        if not has_started and channel.content:
            process.start_clock()
            deadline, has_started = time.monotonic() + seconds, True
        if is_done():
            return "done"
        if process.status in ready and not process.read_status():
            return "ended"
    return "time" if has_started else "ended"


def _closed_by(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _pipe(stack: contextlib.ExitStack, if_it_fails: contextlib.ExitStack) -> tuple[int, int]:
    """Returns the two ends of a pipe; `stack` closes the writing end, and `if_it_fails` the reading end."""
    reading, writing = os.pipe()
    return _closed_by(if_it_fails, reading), _closed_by(stack, writing)


def _memory_file(text: str) -> int:
    """Returns a sealed memory file with a text: nobody can change it, and writing it never blocks."""
    descriptor = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _bubblewrap_command(bubblewrap: str, image: Image, limits: Limits, *, seccomp: int, status: int) -> Sequence[str]:
    options = [
        *["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"],
        *["--unshare-cgroup-try", "--disable-userns", "--assert-userns-disabled"],
        *["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"],
        *["--uid", _INSIDE_UID, "--gid", _INSIDE_UID, "--hostname", "sandbox", "--clearenv"],
        *["--ro-bind", str(image.root), "/", "--proc", "/proc"],
        *["--size", str(limits.disk_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"],
        *["--seccomp", str(seccomp), "--json-status-fd", str(status)],
    ]
    for name in DEVICES:
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, value in ENVIRONMENT.items():
        options += ["--setenv", name, value]
    return [bubblewrap, *options, "--"]


def _resource_limits(limits: Limits, mode: str) -> dict[str, int]:
    """Returns the limits by their names in Python's `resource`; they are set inside before untrusted code runs."""
    cells = _SESSION_CPU_CELLS if mode == "cells.serve" else 1
    return {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_CPU": limits.cpu_seconds * cells,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_FSIZE": limits.disk_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
