"""The memory of this host that the processes of a job may still take."""

import contextlib
from pathlib import Path

import psutil

# of version 2 of cgroups, and of version 1: the limit, what is in use, and what of it the kernel gives up
_NAMES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory() -> int:
    """Returns the bytes that are free on this host, and in each control group with a limit that this process is in.

    Slurm may make a group for each job, whose limit is what the job has asked for, and not the memory of the node. The
    kernel kills processes that would exceed it.
    """
    from sspo_sandbox.cgroup import own_groups  # the whole sandbox is imported with it

    free = psutil.virtual_memory().available
    for group in own_groups():
        for folder in (group, *group.parents):
            free = min(free, *_free_in(folder))
    return max(0, free)


def _free_in(folder: Path) -> list[int]:
    """Returns the free bytes of a group; a large number if it has no limit, or the folder is no control group."""
    found = [2**63]
    for limit, usage, reclaimable in _NAMES:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            most = int((folder / limit).read_text(encoding="ascii"))
            used = int((folder / usage).read_text(encoding="ascii"))
            lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
            cached = sum(int(value) for name, value in map(str.split, lines) if name == reclaimable)
            found.append(most - used + cached)
    return found
