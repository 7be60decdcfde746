"""A user id and a control group for each sandbox, if this process may make them.

Only a control group limits a tree of processes. Version 1 (memory and pids, each at its own mount) and version 2 (a
delegated group) are supported.
"""

import contextlib
import itertools
import os
import pwd
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sspo_sandbox.types import SandboxError

# Joins the cgroups before any process of the sandbox exists. Ignores the signals that Slurm sends to all processes of a
# job, since they are meant for the trainer: a program that they end would count as wrong, and the policy would learn
# from that.
_JOIN_GROUPS = 'trap "" TERM USR1; while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'
_HIGHEST_UID = 2_100_000_000  # above the ids of people, services and containers
_numbers = itertools.count()  # of the slots of this process


def _prefix() -> str:
    """Returns the beginning of the names of groups that processes of this PID namespace make, before their pids."""
    return f"sspo-sandbox-{os.stat('/proc/self/ns/pid').st_ino}-"


class Slot:
    """A user id and control groups for one sandbox at a time; the next one reuses them.

    Root takes a separate id for each sandbox: the kernel does not apply the process limit to root itself, and one
    sandbox's user cannot reach another's processes. Any other user keeps its id and relies on the user namespace.

    Args:
        folders: the groups' folders, one for each hierarchy.
        memory_bytes, processes: the limits of all processes together.

    Raises:
        SandboxError: there is no free user id.
    """

    def __init__(self, folders: list[Path], memory_bytes: int, processes: int) -> None:
        self.uid, self._reservation = _reserve_user() if os.geteuid() == 0 else (os.getuid(), None)
        self._folders = folders
        values = {
            "memory.max": memory_bytes,
            "memory.swap.max": 0,
            "pids.max": processes,
            "memory.limit_in_bytes": memory_bytes,
            "memory.memsw.limit_in_bytes": memory_bytes,  # version 1
        }
        for folder in folders:
            folder.mkdir(exist_ok=True)
            for name, value in values.items():
                if (folder / name).exists():
                    (folder / name).write_text(str(value), encoding="utf-8")

    @property
    def procs_files(self) -> list[str]:
        """Returns the files to which a process writes its pid to join the groups."""
        return [str(folder / "cgroup.procs") for folder in self._folders]

    @property
    def command(self) -> list[str]:
        """Returns the command that joins the groups, changes to the user, and then runs what follows it."""
        options = f"--reuid={self.uid} --regid={self.uid} --clear-groups --no-new-privs --"
        user = [shutil.which("setpriv") or "setpriv", *options.split()] if self._reservation else []
        return ["/bin/sh", "-c", _JOIN_GROUPS, "sh", *self.procs_files, "--", *user]

    def num_memory_kills(self) -> int:
        """Returns how many processes of the groups the kernel has killed for lack of memory."""
        total = 0
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                if (folder / name).exists():
                    found = re.search(r"^oom_kill (\d+)$", (folder / name).read_text(encoding="utf-8"), re.MULTILINE)
                    total += int(found[1]) if found else 0
        return total

    def kill(self) -> None:
        """Kills all processes that are left in the groups, even if they left the sandbox's process tree."""
        _kill_members(self._folders)

    def close(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
        for folder in self._folders:
            for _ in range(100):  # the kernel needs a moment to remove the last process
                with contextlib.suppress(OSError):
                    folder.rmdir()
                if not folder.exists():
                    break
                time.sleep(0.01)


class Cgroups:
    """The places where this process may make groups: below its own groups, or in a given folder.

    Args:
        folder: a delegated version 2 group; "" looks for writable groups.

    Raises:
        SandboxError: no group with a memory limit can be made in the given folder.
    """

    def __init__(self, folder: str = "") -> None:
        places = [Path(folder)] if folder else own_groups()
        limited = {place: _controllers(place) for place in places}
        self._parents = [place for place in places if limited[place]]
        self.can_limit_memory = any("memory" in controllers for controllers in limited.values())
        if folder and not self.can_limit_memory:
            raise SandboxError(
                f"no group with a memory limit can be made in {folder}: name a cgroup that is delegated to this user "
                "and whose cgroup.subtree_control has memory and pids, or leave the sandbox's cgroup empty"
            )
        for parent in self._parents:
            _remove_stale(parent)

    def make_slot(self, memory_bytes: int, processes: int) -> Slot:
        """Makes the groups and the user id of one sandbox at a time."""
        name = f"{_prefix()}{os.getpid()}-{next(_numbers)}"
        return Slot([parent / name for parent in self._parents], memory_bytes, processes)


def own_groups() -> list[Path]:
    """Returns the folders of the groups that this process is in, one for each hierarchy."""
    mounts: list[tuple[str, Path, set[str]]] = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            mounts.append((before.split()[3], Path(before.split()[4]), {kind, *options.split(",")}))
    found: list[Path] = []
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        wanted = set(controllers.split(",")) if controllers else {"cgroup2"}
        if not wanted & {"memory", "pids", "cgroup2"}:
            continue
        for root, mount, options in mounts:
            if wanted <= options and Path(path).is_relative_to(root):
                found.append(mount / Path(path).relative_to(root))
    return found


def _controllers(parent: Path) -> set[str]:
    """Returns of memory and pids those that a child group that can be made here can limit."""
    trial = parent / f"{_prefix()}{os.getpid()}-trial"
    try:
        trial.mkdir()
    except OSError:
        return set()
    try:
        names = (
            {"memory.max", "memory.limit_in_bytes", "pids.max"} if os.access(parent / "cgroup.procs", os.W_OK) else ()
        )
        return {name.partition(".")[0] for name in names if os.access(trial / name, os.W_OK)}
    finally:
        trial.rmdir()


def _remove_stale(parent: Path) -> None:
    """Removes the groups of processes that were killed, and kills what is left in them.

    Nothing ends bubblewrap's child if bubblewrap is killed together with its parent while it makes the sandbox.
    """
    for folder in parent.glob(f"{_prefix()}*"):
        pid = folder.name.removeprefix(_prefix()).partition("-")[0]
        if not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):
                _kill_members([folder])
                folder.rmdir()


def _kill_members(folders: Iterable[Path]) -> None:
    """Kills the processes of groups, and waits for their death."""
    for _ in range(100):
        pids = [int(pid) for folder in folders for pid in (folder / "cgroup.procs").read_text(encoding="utf-8").split()]
        pids = [pid for pid in pids if pid]  # 0 is a process of another PID namespace, and for `kill` a group
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _reserve_user() -> tuple[int, socket.socket]:
    """Returns a user id that no other sandbox of this machine has until the socket is closed."""
    for uid in _candidate_uids():
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            reservation.bind(f"\0sspo-sandbox-{uid}")  # the kernel frees it when this process ends
            return uid, reservation
        reservation.close()
    raise SandboxError(
        "there is no free user id for the sandbox: run the process in a user namespace with more ids, or lower the "
        "number of sandboxes at a time"
    )


def _candidate_uids() -> Iterator[int]:
    """Returns the ids that are valid in this user namespace and not in the user database, from the highest."""
    ranges = map(str.split, Path("/proc/self/uid_map").read_text(encoding="utf-8").splitlines())
    end = min(_HIGHEST_UID, max(int(first) + int(length) for first, _, length in ranges))
    known = {entry.pw_uid for entry in pwd.getpwall()} | {65534}
    return (uid for uid in range(end - 1, max(end - 20_000, 1000), -1) if uid not in known)
