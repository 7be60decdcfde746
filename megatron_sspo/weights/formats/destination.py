"""Destination folders: written under a temporary name, renamed when all of the folder is on disk."""

import glob
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.files.writing import flush_to_disk


@contextmanager
def new_folder(path: Path, sources: Iterable[Path] = ()) -> Iterator[Path]:
    """Yields an empty folder beside `path`, which gets that name when it is on disk; after an error it is removed.

    What killed processes have left that wrote to this path is removed before; one process at a time writes there.

    Args:
        path: the destination, an absolute path.
        sources: see `check_destination`.

    Raises:
        UserError: see `check_destination`.
    """
    check_destination(path, sources)
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{glob.escape(path.name)}.partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    partial = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    partial.mkdir()
    try:
        yield partial
        for written in [*partial.rglob("*"), partial]:
            flush_to_disk(written)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial)
        raise
    flush_to_disk(path.parent)


def check_destination(path: Path, sources: Iterable[Path] = ()) -> None:
    """Refuses a destination that is not empty, cannot be written or replaced, or is inside a folder that is read.

    Args:
        path: the destination, an absolute path.
        sources: the folders that are read.

    Raises:
        UserError: the destination is refused.
    """
    for source in sources:
        if path.is_relative_to(real_path(source)):
            raise UserError(f"{path} would be written into {source}, which is read; write somewhere else")
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not an empty folder; remove it or write somewhere else")
    if os.path.ismount(path):
        raise UserError(f"{path} is a mount point, which cannot be renamed; write into a folder inside it")
    parent = next(parent for parent in path.parents if parent.exists())
    if not parent.is_dir():
        raise UserError(f"{parent} is not a folder, so {path} cannot be written; write somewhere else")
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise UserError(f"{parent} cannot be written: no permission; write somewhere else")


def real_path(path: str | Path) -> Path:
    """Returns the absolute path without links; for a link that leads to itself, the path of that link."""
    return Path(os.path.realpath(path))
