"""Temporary folders, locked while they are used, so that the folders of killed processes are recognized and removed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class ScratchFolder:
    """A new temporary folder. The kernel releases its lock when the last process that holds it ends, however it ends.

    Folders with the same prefix that nobody holds are removed first.

    Args:
        prefix: the beginning of the folder's name.
        parent: the folder that it is made in; "": the system's temporary folder.
        mode: the permissions of the folder.
    """

    def __init__(self, prefix: str, parent: str = "", mode: int = 0o700) -> None:
        parent = parent or tempfile.gettempdir()
        _remove_abandoned(prefix, parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            with contextlib.suppress(FileNotFoundError):  # another process removed it before it was locked: try again
                self.path.chmod(mode)
                self._lock = os.open(self.path, os.O_RDONLY)
                with contextlib.suppress(OSError):  # a file system without locks, where abandoned folders stay
                    fcntl.flock(self._lock, fcntl.LOCK_SH)
                if os.fstat(self._lock).st_nlink:
                    return
                os.close(self._lock)

    def close(self) -> None:
        """Removes the folder and releases its lock. A second call does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned(prefix: str, parent: str) -> None:
    for folder in Path(parent).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.geteuid() or folder.is_symlink():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
