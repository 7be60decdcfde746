"""A folder that is written under another name, and gets its own when all of it is on the disk."""

import os
from pathlib import Path

from megatron_sspo.errors import UserError


def check_destination(path: Path) -> None:
    """Refuses a destination that is not free or cannot be written.

    Args:
        path: absolute.

    Raises:
        UserError: it is.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not an empty folder; remove it or write somewhere else")
    parent = next(parent for parent in path.parents if parent.exists())
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise UserError(f"{parent} cannot be written: no permission; write somewhere else")


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
