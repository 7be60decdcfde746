"""A folder that is written under another name, and gets its own when all of it is on the disk."""

import os
from collections.abc import Iterable
from pathlib import Path

from megatron_sspo.errors import UserError


def check_destination(path: Path, sources: Iterable[Path] = ()) -> None:
    """Refuses a destination that is not free or cannot be written, or is in a folder that is read.

    Args:
        path: absolute.
        sources: the folders that are read.

    Raises:
        UserError: it is.
    """
    for source in sources:
        for target in (path, partial_of(path).resolve()):
            if target.is_relative_to(source.resolve()):
                raise UserError(f"{path} would be written into {source}, which is read; write somewhere else")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not an empty folder; remove it or write somewhere else")
    parent = next(parent for parent in path.parents if parent.exists())
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise UserError(f"{parent} cannot be written: no permission; write somewhere else")


def partial_of(destination: Path) -> Path:
    """What the folder of an unfinished conversion is called."""
    return destination.with_name(f"{destination.name}.partial")


def publish(partial: Path, destination: Path) -> None:
    """Waits until all of a folder is on the disk, then gives it its name. An empty folder of that name is replaced."""
    for path in [*partial.rglob("*"), partial]:
        _flush(path)
    partial.rename(destination)
    _flush(destination.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
