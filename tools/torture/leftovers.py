"""Finds the processes and files that a run has left behind."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from tools.torture.processes import Processes, describe

_SECONDS = 15.0  # the time within which all processes have to end


def processes_left(processes: Processes, is_others: Callable[[psutil.Process], bool]) -> list[str]:
    """Returns the processes that outlive an ended attempt, except the servers' processes, which are meant to."""
    deadline = time.monotonic() + _SECONDS
    while True:
        left = [process for process in processes.alive() if not is_others(process)]
        if not left or time.monotonic() > deadline:
            return describe(left)
        time.sleep(0.1)


def is_of_serve(process: psutil.Process) -> bool:
    """Returns whether a process is `megatron-sspo serve` or one of its descendants."""
    try:
        lines = [" ".join(one.cmdline()) for one in (process, *process.parents())]
        return any("megatron_sspo serve" in line for line in lines)
    except psutil.Error:
        return True


def listing(*folders: Path) -> set[str]:
    """Returns every path in these folders, except torch's cache, which torch keeps for the next program."""
    return {str(path) for folder in folders for path in folder.glob("*") if "torchinductor" not in path.name}


def files_of_run(run: Path) -> list[str]:
    """Returns the hidden files in a finished run's folder: temporary files that should have been renamed."""
    return [str(path) for path in run.rglob(".*") if not _is_wanted(path)]


def _is_wanted(path: Path) -> bool:
    return path.name in (".metadata", ".run.lock")  # torch's index of a checkpoint; the lock stays, unlocked


def shared_memory(users: Callable[[], Iterable[psutil.Process]]) -> set[str]:
    """Returns the names in /dev/shm that none of these processes has open or mapped."""
    names = set(os.listdir("/dev/shm"))  # before the processes are found: a starting server makes new files
    used: set[str] = set()
    for process in users():
        with contextlib.suppress(psutil.Error):
            used |= {Path(file.path).name for file in process.open_files()}
            used |= {Path(mapping.path).name for mapping in process.memory_maps()}
    return names - used
