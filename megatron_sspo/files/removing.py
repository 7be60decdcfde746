"""Removes what lies under a name, whatever it is."""

import contextlib
import shutil
from pathlib import Path


def remove(path: Path) -> None:
    """Removes a file, a link (not what it leads to), or a folder, if it exists and as far as this is possible now.

    A file that NFS keeps, because another process reads it, remains.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()
