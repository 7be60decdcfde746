"""Controls what this process prints: it survives a closed or full output, and leaves out the warnings of libraries."""

import contextlib
import errno
import io
import logging
import os
import sys
import warnings
from typing import TextIO

from megatron_sspo.errors import DISK_FULL

_ASCII = ("ascii", "ansi_x3.4-1968", "us-ascii")
_CLOSED = (errno.EPIPE, errno.EIO, errno.EBADF)


def survive_closed_output() -> None:
    """Makes this process survive a closed standard output or error, as behind `| head -1` or a closed terminal.

    Later output to that stream is discarded; a run's log file still has it. If descriptors 0 to 2 were closed at the
    start, they are opened on /dev/null, because the next file opened would otherwise get their number. Characters that
    a terminal or file cannot encode are written with backslashes.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)  # takes the lowest free number
    sys.stdout = _Stream.replacing(sys.stdout, 1)
    sys.stderr = _Stream.replacing(sys.stderr, 2)


def survive_full_disk() -> None:
    """Makes this process survive a full disk under its standard output; a run's log file has the same output."""
    _Stream.ignored = (*_CLOSED, *DISK_FULL)


class _Stream(io.TextIOWrapper):
    """A standard stream that switches to /dev/null after a write error.

    Attributes:
        ignored: the errno values after which it only switches; other errors are raised, too.
    """

    ignored: tuple[int, ...] = _CLOSED

    @classmethod
    def replacing(cls, stream: TextIO | None, descriptor: int) -> TextIO:
        """Returns the stream to use in place of `stream`; None means that it was closed at the start."""
        if isinstance(stream, cls):
            return stream
        if stream is None:
            return cls(open(descriptor, "wb", closefd=False), encoding="utf-8", line_buffering=True)
        if type(stream) is not io.TextIOWrapper:
            return stream  # already replaced, for example by a test runner
        encoding, line_buffering = stream.encoding, stream.line_buffering
        if encoding.lower() in _ASCII:
            encoding = "utf-8"
        return cls(stream.detach(), encoding=encoding, errors="backslashreplace", line_buffering=line_buffering)

    def write(self, text: str) -> int:
        """Writes the text, or discards it if the stream is closed, as by code of the user."""
        if self.closed:
            return len(text)
        try:
            return super().write(text)
        except OSError as error:
            self._discard_output(error)
            return len(text)

    def flush(self) -> None:
        """Flushes the buffer, or discards it if the stream is closed."""
        if self.closed:
            return
        try:
            super().flush()
        except OSError as error:
            self._discard_output(error)

    def _discard_output(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        with contextlib.suppress(OSError):
            super().flush()  # discards what is still in the buffer, which Python would write at its end
        if error.errno not in self.ignored:
            raise error


def ignore_upstream_warnings() -> None:
    """Leaves out the warnings of Megatron and torch that users can do nothing about."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")  # about optional packages
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(megatron\.core|torch\.distributed)")


def ignore_malformed_requests() -> None:
    """Leaves out the tracebacks that aiohttp's servers print for what is not HTTP; they answer it with an error."""
    logging.getLogger("aiohttp.server").addFilter(_is_not_of_a_malformed_request)


def _is_not_of_a_malformed_request(record: logging.LogRecord) -> bool:
    return not record.exc_info or type(record.exc_info[1]).__module__ != "aiohttp.http_exceptions"
