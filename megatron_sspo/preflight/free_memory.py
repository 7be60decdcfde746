"""The memory of this host that the processes of a job may still take."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

_LISTED, _MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
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
    free = [psutil.virtual_memory().available]
    for folder in _groups():
        for limit, usage, reclaimable in _NAMES:
            with contextlib.suppress(OSError, ValueError):  # no such file; "max" is no number
                most, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit, usage))
                lines = map(str.split, (folder / "memory.stat").read_text(encoding="ascii").splitlines())
                free.append(most - used + sum(int(value) for name, value in lines if name == reclaimable))
    return min(free)


def _groups() -> Iterator[Path]:
    """Yields the folders of this process's groups, and of those around them."""
    for line in _LISTED.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            group = _MOUNTED / ("memory" if controllers else "") / path.lstrip("/")
            yield from (group, *group.parents)
