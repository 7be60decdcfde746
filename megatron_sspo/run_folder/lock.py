"""A lock, so that only one process at a time writes a run's folder."""

import contextlib
import fcntl
import json
import logging
import os
import socket
from pathlib import Path

from megatron_sspo.errors import UserError, os_errors_as_user_errors

LOGGER = logging.getLogger("megatron_sspo")
LOCK = ".run.lock"  # in the locked folder

_held: set[int] = set()  # file descriptors of this process's locks


def _close_in_child() -> None:
    """Closes the locks' descriptors in a forked child, which could outlive this process and keep its locks."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class RunLock:
    """A context manager that locks a run's folder by `flock`, which the kernel releases however the process ends.

    Where the file system has no `flock` (Lustre without that option, some FUSE), a warning says so, and nothing keeps
    two runs out of one folder.

    Args:
        folder: the folder to lock; it is created if missing.
        what, option: its owner, and the option that chooses another folder, for the message.

    Raises:
        UserError: another process holds the lock (the message has its machine and pid), or the folder is not writable.
    """

    def __init__(self, folder: Path, *, what: str = "a run", option: str = "--set name=...") -> None:
        self._folder, self._what, self._option = folder, what, option

    def __enter__(self) -> "RunLock":
        with os_errors_as_user_errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / LOCK
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            _held.add(self._descriptor)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._holder()
                self.__exit__()
                raise UserError(
                    f"{self._folder} is in use by {self._what}, {holder}: wait until it ends, stop it, or choose "
                    f"another folder with {self._option}"
                ) from None
            except OSError:
                LOGGER.warning(
                    f"the file system of {self._folder} has no flock: do not start a second run in this folder"
                )
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)
        return self

    def check(self) -> None:
        """Checks that this process still holds the folder. Call it before a file is written there.

        Raises UserError if the folder or its lock was removed or replaced, so that another process may write there.
        """
        try:
            is_ours = os.path.samestat(os.stat(self._folder / LOCK), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_ours = False
        except OSError:  # a file system that does not answer for a moment
            return
        if not is_ours:
            raise UserError(
                f"{self._folder} or its lock was removed or replaced while {self._what} wrote into it: this one ends, "
                "so that two do not write into one folder; continue from its last checkpoint, if there still is one, "
                "or start anew"
            )

    def __exit__(self, *exception: object) -> None:
        # the file is not removed: otherwise two processes could each lock another file of this name
        _held.discard(self._descriptor)
        os.close(self._descriptor)

    def _holder(self) -> str:
        try:
            holder = json.loads(os.pread(self._descriptor, 4096, 0))
            return f"process {holder['pid']} on {holder['host']}"
        except (ValueError, KeyError, TypeError):
            return "another process"
