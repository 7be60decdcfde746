"""Destination folders: written under a temporary name, renamed when all of the folder is on disk."""

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.files.writing import flush_to_disk


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder beside `path`, which gets that name when it is on disk; after an error it is removed.

    What killed processes have left that wrote to this path is removed before; one process at a time writes there. The
    path is absolute and without links.

    Raises:
        UserError: the destination exists and is not an empty folder.
        OSError: it cannot be written, or is a mount point.
    """
    if os.path.lexists(path):
        if not path.is_dir() or any(path.iterdir()):
            raise UserError(f"{path} exists and is not an empty folder; remove it or write somewhere else")
        path.rmdir()
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
