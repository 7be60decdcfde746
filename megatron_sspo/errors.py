"""The one exception whose message is meant for the user."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something that the user can mend.

    The message is one sentence: the thing, the place, the remedy. The command line prints it without a traceback.
    """


@contextmanager
def naming_the_file(place: Path | None = None) -> Iterator[None]:
    """Turns what the operating system refuses, within, into an error of one sentence that names the file.

    Args:
        place: named where the operating system names no file, as for a full disk.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot use {error.filename or place}: {error.strerror or error}") from error
