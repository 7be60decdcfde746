"""Destination folders: written under a temporary name, renamed when all of the folder is on disk."""

import os
from collections.abc import Iterable
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.files.writing import flush_to_disk


def check_destination(path: Path, sources: Iterable[Path] = ()) -> None:
    """Refuses a destination that is not empty, cannot be written or replaced, or is inside a folder that is read.

    Args:
        path: the destination, an absolute path.
        sources: the folders that are read.

    Raises:
        UserError: the destination is refused.
    """
    for source in sources:
        for target in (path, real_path(partial_path(path))):
            if target.is_relative_to(real_path(source)):
                raise UserError(f"{path} would be written into {source}, which is read; write somewhere else")
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not an empty folder; remove it or write somewhere else")
    partial = partial_path(path)
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise UserError(f"{partial}, where the work is done, is a link or not a folder; remove it")
    for target in (path, partial):
        if os.path.ismount(target):
            raise UserError(f"{target} is a mount point, which cannot be renamed; write into a folder inside it")
    parent = next(parent for parent in path.parents if parent.exists())
    if not parent.is_dir():
        raise UserError(f"{parent} is not a folder, so {path} cannot be written; write somewhere else")
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise UserError(f"{parent} cannot be written: no permission; write somewhere else")


def partial_path(destination: Path) -> Path:
    """Returns the path of an unfinished conversion's folder."""
    return Path(f"{destination}.partial")


def real_path(path: str | Path) -> Path:
    """Returns the absolute path without links; for a link that leads to itself, the path of that link."""
    return Path(os.path.realpath(path))


def publish(partial: Path, destination: Path) -> None:
    """Flushes a folder to disk, then renames it to `destination`. An empty folder of that name is replaced."""
    flush_folder(partial)
    partial.rename(destination)
    flush_to_disk(destination.parent)


def flush_folder(folder: Path) -> None:
    """Flushes a folder and all that is in it to disk."""
    for path in [*folder.rglob("*"), folder]:
        flush_to_disk(path)
