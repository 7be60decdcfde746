"""The pipes between the judge and the program that it judges, with one JSON text for each message."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_LONGEST = 64 * 1024**2  # bytes of a message


class Broken(BaseException):
    """Raised if the other side has ended, or sent a message that violates the protocol."""


class Unsendable(Exception):
    """Raised if a value cannot be passed to the other side."""


def pack(message: Any) -> bytes:
    """Returns the bytes of one message."""
    try:
        content = json.dumps(message).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unsendable(f"a value cannot be passed on: {error}") from None
    if len(content) > _LONGEST:
        raise Unsendable(f"a value of {len(content)} bytes is too large to be passed on")
    return len(content).to_bytes(4, "little") + content


def write(descriptor: int, content: bytes) -> None:
    """Sends the bytes of one message."""
    try:
        write_all(descriptor, content)
    except BrokenPipeError as error:
        raise Broken("the program has ended") from error


def write_all(descriptor: int, content: bytes) -> None:
    """Writes bytes to a file descriptor, in as many calls as it takes."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def wait(descriptor: int) -> None:
    """Waits for a message, or for the end of the other side."""
    select.select([descriptor], [], [])


def read(descriptor: int) -> Any:
    """Receives one message."""
    size = int.from_bytes(_read_exactly(descriptor, 4), "little")
    if size > _LONGEST:
        raise Broken("a message is too long")
    try:
        return json.loads(_read_exactly(descriptor, size))
    except (ValueError, RecursionError) as error:
        raise Broken("a message is not JSON") from error


def _read_exactly(descriptor: int, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = os.read(descriptor, min(1 << 20, size - len(content)))
        if not piece:
            raise Broken("the program has ended")
        content += piece
    return bytes(content)


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
