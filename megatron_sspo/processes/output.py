"""Standard output that may be closed while a run goes on."""

import contextlib
import errno
import io
import os
import sys
from typing import TextIO

_ASCII = ("ascii", "ansi_x3.4-1968", "us-ascii")
_CLOSED = (errno.EPIPE, errno.EIO, errno.EBADF)


def outlive_closed_output() -> None:
    """Makes this process survive a closed standard output or error, as behind `| head -1` or a closed terminal.

    What is printed from then on goes nowhere; a run's log file still has it. Descriptors 0 to 2 that were closed at the
    start are opened on /dev/null, because the next file that is opened would otherwise get their number. What a
    terminal or file cannot encode is written with backslashes.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)  # takes the lowest free number
    sys.stdout = _Stream.replacing(sys.stdout, 1)
    sys.stderr = _Stream.replacing(sys.stderr, 2)


def outlive_full_disk() -> None:
    """Makes this process survive a disk without room for its standard output, which a run's log file has as well."""
    _Stream.ignored = (*_CLOSED, errno.ENOSPC, errno.EDQUOT)


class _Stream(io.TextIOWrapper):
    """A standard stream that turns to /dev/null when nobody reads it any more.

    Attributes:
        ignored: the errors after which it does so.
    """

    ignored: tuple[int, ...] = _CLOSED

    @classmethod
    def replacing(cls, stream: TextIO | None, descriptor: int) -> TextIO:
        """Returns the stream to use in place of `stream`, which is None where it was closed at the start."""
        if isinstance(stream, cls):
            return stream
        if stream is None:
            return cls(open(descriptor, "wb", closefd=False), encoding="utf-8", line_buffering=True)
        if type(stream) is not io.TextIOWrapper:
            return stream  # somebody else has replaced it already
        encoding, line_buffering = stream.encoding, stream.line_buffering
        if encoding.lower() in _ASCII:
            encoding = "utf-8"
        return cls(stream.detach(), encoding=encoding, errors="backslashreplace", line_buffering=line_buffering)

    def write(self, text: str) -> int:
        """Writes, to nowhere where the stream is closed."""
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flushes, to nowhere where the stream is closed."""
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if error.errno not in self.ignored:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        with contextlib.suppress(OSError):
            super().flush()  # what is still in the buffer
