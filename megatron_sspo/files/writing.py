"""Writes files so that a reader finds the old content or the new, and never a part."""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a temporary file beside `path`, which takes its place at the end, unless an error is raised.

    The name is fixed, so that the next write replaces what a kill has left. It keeps the suffix, from which torch's
    profiler tells whether to compress.

    Raises:
        OSError: `path` is there and is not a regular file: a device of the system or a pipe would be lost. An error
            without a file name, such as that of a full disk, gets the name of `path`.
    """
    temporary = _temporary(path)
    try:
        yield temporary
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise
    temporary.rename(path)


def check_replaceable(path: Path) -> None:
    """Makes the folder of a file, and raises OSError if `replacing` cannot write the file, long before it does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.touch()
    temporary.unlink()


def _temporary(path: Path) -> Path:
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    temporary = path.with_name(f".new-{path.name}")
    temporary.unlink(missing_ok=True)
    return temporary


def write_atomically(path: Path, text: str) -> None:
    """Writes a text and flushes it to disk, so that a reader finds the old content or the new."""
    with replacing(path) as temporary, temporary.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSON lines, atomically.

    Values without a JSON type, such as a date in a prompt's metadata, become strings. This loses nothing, because only
    the reward reads metadata, and the rollouts written here are scored already.
    """
    write_atomically(path, "".join(json.dumps(row, default=str) + "\n" for row in rows))


def flush_to_disk(path: Path) -> None:
    """Flushes a file, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems cannot fsync a folder
            raise
    finally:
        os.close(descriptor)


@contextmanager
def safetensors_errors_as_user_errors(folder: Path) -> Iterator[None]:
    """Turns the error that safetensors raises in place of an OSError, as for a full disk, into a UserError."""
    from safetensors import SafetensorError  # the objectives do without this package

    try:
        yield
    except SafetensorError as error:
        raise UserError(f"cannot write {folder} ({error}): make room, or write to another disk") from error
