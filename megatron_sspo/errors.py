"""The one exception whose message is meant for the user."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something that the user can mend.

    The message is one sentence: the thing, the place, the remedy. The command line prints it without a traceback.
    """


@contextmanager
def naming_the_file() -> Iterator[None]:
    """Makes what the operating system refuses, within, an error of one sentence that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot use {error.filename}: {error.strerror}") from error
