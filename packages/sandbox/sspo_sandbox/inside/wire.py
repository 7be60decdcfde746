"""The pipes between the judge and the program that it judges, with one JSON text for each message."""

from __future__ import annotations

import contextlib
import json
import os
import sys

from sspo_sandbox.inside.lazy import Any

_LONGEST = 64 * 1024**2  # bytes of a message


class Broken(BaseException):
    """Raised if the other side has ended, or sent a message that violates the protocol."""


def write_all(descriptor: int, content: bytes) -> None:
    """Writes bytes to a file descriptor, in as many calls as it takes."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class Pipe:
    """Sends and receives messages. An exception of a signal's handler between two reads loses nothing."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer = bytearray()

    def send(self, message: Any) -> None:
        """Sends a message. Raises Broken if the other side has ended, or the message is too large."""
        try:
            content = json.dumps(message).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise Broken(f"a value cannot be passed on: {error}") from None
        if len(content) > _LONGEST:
            raise Broken(f"values of {len(content)} bytes are too large to be passed on")
        try:
            write_all(self._writing, len(content).to_bytes(4, "little") + content)
        except BrokenPipeError:
            raise Broken("the program has ended") from None

    def receive(self) -> Any:
        """Waits for a message. Raises Broken if the other side has ended, or sent something else."""
        self._wait_for(4)
        size = int.from_bytes(self._buffer[:4], "little")
        if size > _LONGEST:
            raise Broken("a message is too long")
        self._wait_for(4 + size)
        content = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise Broken("a message is not JSON") from None

    def _wait_for(self, size: int) -> None:
        while len(self._buffer) < size:
            piece = os.read(self._reading, 1 << 20)
            if not piece:
                raise Broken("the program has ended")
            self._buffer += piece


def close_all_but(kept: set[int]) -> None:
    """Closes every other file descriptor of this process."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor that listed the folder
                os.close(int(name))


def forbid_inspection() -> None:
    """Hides this process's memory and file descriptors from other processes of the same user.

    The kernel then refuses ptrace, /proc/PID/mem and /proc/PID/fd (PR_SET_DUMPABLE, prctl(2)).
    """
    import _ctypes  # without `ctypes`, which is slow to import

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]
    pr_set_dumpable = 4  # linux/prctl.h
    if _ctypes.call_function(prctl, (pr_set_dumpable, 0, 0, 0, 0)) != 0:
        sys.exit("the judge cannot be hidden from the program")
