"""A lock, so that only one process at a time writes a run's folder."""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.reading import check_regular_file, open_file
from megatron_sspo.processes.surroundings import boot_id

LOCK, _HOLDER = ".run.lock", ".run.holder"  # in the locked folder
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_HEARTBEAT_SECONDS, _WATCH_SECONDS = 2.0, 15.0
_MAX_BYTES = 4096  # of a lock or holder file

_held: set[int] = set()  # file descriptors of this process's locks


def _close_in_child() -> None:
    """Closes the locks' descriptors in a forked child, which could outlive this process and keep its locks."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class RunLock:
    """A context manager that locks a run's folder against other processes, also those of other machines.

    It uses `flock`, which the kernel releases however the process ends. If the file system has no `flock` (Lustre
    without that option, some FUSE), a holder file replaces it: the holder increments a counter in it. On the same
    machine, a dead holder is recognized by its pid and start time. On another machine, the holder counts as dead if
    the file does not change for `watch_seconds`.

    The lock is that of a file. If somebody removes the file or its folder, another process can lock a new one, which
    `check` detects.

    Args:
        folder: the folder to lock; it is created if missing.
        watch_seconds: the seconds without a change after which a holder on another machine counts as dead.
        what: the owner of the folder, for the message.
        option: the option that chooses another folder, for the message.

    Raises:
        UserError: another process holds the lock (the message names its machine and pid), or the folder cannot be
            written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        watch_seconds: float = _WATCH_SECONDS,
        what: str = "a run",
        option: str = "--set name=...",
    ) -> None:
        self._folder, self._watch_seconds = folder, watch_seconds
        self._what, self._option = what, option
        self._descriptor = -1
        self._token = secrets.token_hex(8)  # in the file that locks the folder
        self._holder_file: Path | None = None  # the holder file, only without flock
        self._ended = threading.Event()

    def __enter__(self) -> "RunLock":
        with os_errors_as_user_errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / LOCK
            if path.exists():
                check_regular_file(path)
            self._open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read(path)
                self._close()
                raise self._lock_held_error(holder) from None
            except OSError as error:
                self._close()
                if error.errno not in _NO_FLOCK:
                    raise
                self._acquire_holder_file(self._folder / _HOLDER)
            else:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, json.dumps({**_this_process(), "token": self._token}).encode(), 0)
        return self

    def check(self) -> None:
        """Checks that this process still holds the folder. Call it before a file is written there.

        Raises:
            UserError: the folder or its lock was removed or replaced since, so that another process may write there.
        """
        file = self._holder_file or self._folder / LOCK
        try:
            holder = _parse(_read_start(file))
        except FileNotFoundError:
            holder = {}
        except OSError:  # a file system that does not answer for a moment
            return
        if holder.get("token") != self._token:
            who = f"process {holder['pid']} on {holder['host']} has it now" if {"pid", "host"} <= holder.keys() else ""
            raise UserError(
                f"{self._folder} or its lock was removed or replaced while {self._what} wrote into it"
                f"{f' ({who})' if who else ''}: this one ends, so that two do not write into one folder; continue from "
                "its last checkpoint, if there still is one, or start anew"
            )

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._holder_file is not None and _read(self._holder_file).get("token") == self._token:
            self._holder_file.unlink(missing_ok=True)
        elif self._descriptor >= 0:
            # the file is emptied, not removed: otherwise two processes could each lock another file of this name
            os.ftruncate(self._descriptor, 0)
        self._close()

    def _acquire_holder_file(self, file: Path) -> None:
        while True:
            try:
                self._open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                holder = _read(file)
                if self._is_alive(file, holder):
                    raise self._lock_held_error(holder) from None
                self._remove_stale(file, holder)
                continue
            self._holder_file = file
            self._write_heartbeat(0)
            threading.Thread(target=self._write_heartbeats, daemon=True).start()
            return

    def _is_alive(self, file: Path, holder: dict[str, Any]) -> bool:
        if holder.get("host") == socket.gethostname() and holder.get("boot") == boot_id():
            return holder.get("started") == _start_time(holder.get("pid")) is not None
        deadline = time.monotonic() + self._watch_seconds
        while time.monotonic() < deadline:
            time.sleep(min(0.2, self._watch_seconds / 10))
            if (now := _read(file)) and now != holder:
                return True
        return False

    def _remove_stale(self, file: Path, holder: dict[str, Any]) -> None:
        """Removes a dead holder's file.

        Only one of several processes succeeds with the rename. If it has renamed a file that a faster process has
        written since, it puts that file back.
        """
        mine = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):
            file.rename(mine)
            if _read(mine).get("token") != holder.get("token"):
                with contextlib.suppress(FileExistsError):
                    os.link(mine, file)
            mine.unlink()

    def _write_heartbeats(self) -> None:
        count = 0
        while not self._ended.wait(_HEARTBEAT_SECONDS):
            count += 1
            self._write_heartbeat(count)

    def _write_heartbeat(self, count: int) -> None:
        # the text always has the same length
        text = json.dumps({**_this_process(), "token": self._token, "beat": f"{count:015}"})
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, text.encode(), 0)

    def _open(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        _held.add(self._descriptor)

    def _close(self) -> None:
        if self._descriptor >= 0:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock_held_error(self, holder: dict[str, Any]) -> UserError:
        who = f"process {holder['pid']} on {holder['host']}" if {"pid", "host"} <= holder.keys() else "another process"
        return UserError(
            f"{self._folder} is in use by {self._what}, {who}: wait until it ends, stop it, or choose another folder "
            f"with {self._option}"
        )


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "boot": boot_id(), "started": _start_time(pid)}


def _read(path: Path) -> dict[str, Any]:
    """Returns the content of a lock or holder file; {} if the file is missing or not yet written."""
    try:
        return _parse(_read_start(path))
    except OSError:
        return {}


def _read_start(path: Path) -> bytes:
    """Returns what a lock or holder file has; a pipe or a device of its name has no end and is an OSError."""
    with open_file(path) as file:
        return file.read(_MAX_BYTES)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _start_time(pid: Any) -> str | None:
    """Returns when a process of this machine started, in ticks since boot; None if no live process has this pid."""
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_bytes().decode(errors="replace")
    except (OSError, ValueError, TypeError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
