"""The one exception whose message is meant for the user."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MAX_SHOWN = 80  # characters of a value
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last: of the disk's format, or of `ulimit -f`
_MACHINE_ERRORS = (*DISK_FULL, errno.EIO)


class UserError(Exception):
    """An error that the user can fix.

    The message is one sentence: the problem, where it is, and how to fix it. The command line prints it without a
    traceback.
    """


@contextmanager
def os_errors_as_user_errors(place: Path | None = None) -> Iterator[None]:
    """Turns an OSError raised inside into a UserError that names the file.

    Args:
        place: the path to name if the OSError has no file name, as for a full disk.
    """
    try:
        yield
    except OSError as error:
        limit = "raise the limit `ulimit -f`" if error.errno == errno.EFBIG else "make room"
        remedy = f"; {limit}, or write to another disk" if error.errno in _MACHINE_ERRORS else ""
        file = error.filename
        if error.errno in (errno.EEXIST, errno.ENOTDIR) and file is not None and not os.path.isdir(file):
            remedy = "; a file is where a folder has to be: name another place, or remove the file"
        if error.errno in DISK_FULL and error.filename2 is not None:  # of a copy, whose target could not be written
            file = error.filename2
        if file is not None:
            raise UserError(f"cannot use {os.fsdecode(file)}: {error.strerror}{remedy}") from error
        if place is not None or error.errno in _MACHINE_ERRORS:
            where = f" into {place}" if place is not None else ""
            raise UserError(f"cannot write{where}: {error.strerror or error}{remedy}") from error
        raise


def escape_unprintable(text: str) -> str:
    """Returns the text on one line, with escapes for line breaks and other characters that a path may have."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's text, or the name of its class if it has no text."""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r})"
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an exception of a plug-in or another package, whose __str__ fails
        lines = []
    return " ".join(next(iter(lines), type(error).__name__).split())


def short_repr(value: Any) -> str:
    """Returns the repr of a value from outside for an error message: on one line, and cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
