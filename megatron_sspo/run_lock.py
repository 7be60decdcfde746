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

from megatron_sspo.errors import UserError, naming_the_file

_LOCK, _HOLDER = ".run.lock", ".run.holder"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_BEAT_SECONDS, _WATCH_SECONDS = 2.0, 15.0

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
        self._note: Path | None = None  # the holder file, only without flock
        self._ended = threading.Event()

    def __enter__(self) -> "RunLock":
        with naming_the_file():
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / _LOCK
            self._open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read(path)
                self._close()
                raise self._refusal(holder) from None
            except OSError as error:
                self._close()
                if error.errno not in _NO_FLOCK:
                    raise
                self._take_note(self._folder / _HOLDER)
            else:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, json.dumps(_myself()).encode(), 0)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._note is not None and _read(self._note).get("token") == self._token:
            self._note.unlink(missing_ok=True)
        elif self._descriptor >= 0:
            # emptied, not removed: otherwise two processes could each lock a different file of this name
            os.ftruncate(self._descriptor, 0)
        self._close()

    def _take_note(self, note: Path) -> None:
        while True:
            try:
                self._open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                known = _read(note)
                if self._is_alive(note, known):
                    raise self._refusal(known) from None
                self._remove_of_the_dead(note, known)
                continue
            self._note, self._token = note, secrets.token_hex(8)
            self._beat(0)
            threading.Thread(target=self._beat_on, daemon=True).start()
            return

    def _is_alive(self, note: Path, known: dict[str, Any]) -> bool:
        if known.get("host") == socket.gethostname() and known.get("boot") == _boot():
            return known.get("started") == _started(known.get("pid")) is not None
        deadline = time.monotonic() + self._watch_seconds
        while time.monotonic() < deadline:
            time.sleep(min(0.2, self._watch_seconds / 10))
            if (now := _read(note)) and now != known:
                return True
        return False

    def _remove_of_the_dead(self, note: Path, known: dict[str, Any]) -> None:
        """Removes a dead holder's file.

        Only one of several processes succeeds with the rename. If it has renamed a file that a faster process has
        written since, it puts that file back.
        """
        mine = note.with_name(f"{note.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):
            note.rename(mine)
            if _read(mine).get("token") != known.get("token"):
                with contextlib.suppress(FileExistsError):
                    os.link(mine, note)
            mine.unlink()

    def _beat_on(self) -> None:
        count = 0
        while not self._ended.wait(_BEAT_SECONDS):
            count += 1
            self._beat(count)

    def _beat(self, count: int) -> None:
        text = json.dumps({**_myself(), "token": self._token, "beat": f"{count:015}"})  # always of the same length
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

    def _refusal(self, holder: dict[str, Any]) -> UserError:
        who = f"process {holder['pid']} on {holder['host']}" if {"pid", "host"} <= holder.keys() else "another process"
        return UserError(
            f"{self._folder} is the folder of {self._what} that {who} writes at this moment: wait for its end, stop "
            f"it, or choose another folder with {self._option}"
        )


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "boot": _boot(), "started": _started(pid)}


def _read(path: Path) -> dict[str, Any]:
    """Returns the content of a lock or holder file; {} if the file is missing or not yet written."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _boot() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""


def _started(pid: Any) -> str | None:
    """Returns when a process of this machine started, in ticks since boot; None if no live process has this pid."""
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_bytes().decode(errors="replace")
    except (OSError, ValueError, TypeError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
