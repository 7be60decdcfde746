"""A control group for each sandbox, if this process may make one: the only limit that holds for a tree of processes.

Version 1 (memory and pids, each at its own mount) and version 2 (a delegated group) of cgroups are supported.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from sspo_sandbox.types import SandboxError


def _prefix() -> str:
    """Returns the beginning of the names of groups that processes of this PID namespace make, before their pids."""
    return f"sspo-sandbox-{os.stat('/proc/self/ns/pid').st_ino}-"


class Cgroup:
    """The group of one sandbox at a time; it is reused for one program after another.

    Args:
        folders: the group's folders, one for each hierarchy.
    """

    def __init__(self, folders: list[Path], memory_bytes: int, processes: int) -> None:
        self._folders = folders
        for folder in folders:
            folder.mkdir(exist_ok=True)
            # the names of version 2 and of version 1; only files that exist are written
            _write(folder, ("memory.max", "memory.limit_in_bytes"), memory_bytes)
            _write(folder, ("memory.swap.max",), 0)
            _write(folder, ("memory.memsw.limit_in_bytes",), memory_bytes)
            _write(folder, ("pids.max",), processes)

    @property
    def procs_files(self) -> list[str]:
        """Returns the files to which a process writes its pid to join the group."""
        return [str(folder / "cgroup.procs") for folder in self._folders]

    def num_memory_kills(self) -> int:
        """Returns how many processes of the group the kernel has killed for lack of memory."""
        total = 0
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                if (folder / name).exists():
                    found = re.search(r"^oom_kill (\d+)$", (folder / name).read_text(encoding="utf-8"), re.MULTILINE)
                    total += int(found[1]) if found else 0
        return total

    def kill(self) -> None:
        """Kills all processes that are left in the group, even if they left the sandbox's process tree."""
        _kill_members(self._folders)

    def close(self) -> None:
        for folder in self._folders:
            for _ in range(100):  # the kernel needs a moment to remove the last process
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
                else:
                    break


class Cgroups:
    """The places where this process may make groups: below its own groups, or in a given folder.

    Args:
        folder: a delegated version 2 group; "" looks for writable groups.

    Raises:
        SandboxError: no group with a memory limit can be made in the given folder.
    """

    def __init__(self, folder: str = "") -> None:
        places = [Path(folder)] if folder else own_groups()
        self._parents = [place for place in places if _can_limit(place, "memory") or _can_limit(place, "pids")]
        self.can_limit_memory = any(_can_limit(place, "memory") for place in self._parents)
        if folder and not self.can_limit_memory:
            raise SandboxError(
                f"no group with a memory limit can be made in {folder}: name a cgroup that is delegated to this user "
                "and whose cgroup.subtree_control has memory and pids, or leave the sandbox's cgroup empty"
            )
        for parent in self._parents:
            _remove_stale(parent)

    def make(self, name: str, memory_bytes: int, processes: int) -> Cgroup:
        """Makes a group; `name` has to be unique within this process."""
        folders = [parent / f"{_prefix()}{os.getpid()}-{name}" for parent in self._parents]
        return Cgroup(folders, memory_bytes, processes)


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


def _can_limit(parent: Path, controller: str) -> bool:
    """Returns whether a child group with this controller's limit can be made here."""
    trial = parent / f"{_prefix()}{os.getpid()}-trial"
    limit = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max",)}[controller]
    try:
        trial.mkdir()
    except OSError:
        return False
    try:
        return any(os.access(trial / name, os.W_OK) for name in limit) and os.access(parent / "cgroup.procs", os.W_OK)
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


def _write(folder: Path, names: tuple[str, ...], value: int) -> None:
    for name in names:
        if (folder / name).exists():
            (folder / name).write_text(str(value), encoding="utf-8")
