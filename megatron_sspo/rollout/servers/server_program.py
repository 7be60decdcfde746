"""Runs SGLang's server or router in SGLang's own Python environment; imports only the standard library and SGLang.

    python server_program.py sglang.launch_server --model-path ... (the arguments of that module)

The API key is passed in the environment, because every user can read arguments in `ps`. The process is killed when its
parent ends, and the processes that it started are killed when it ends. Files that SGLang leaves in /dev/shm and in
TMPDIR, a separate folder for each server, are removed. SIGTERM and SIGUSR1 are blocked: Slurm sends SIGTERM to all
processes before it ends a job, but the trainer still needs its servers to finish the current update.
"""

import contextlib
import ctypes
import glob
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker

KEY = "MEGATRON_SSPO_SERVER_KEY"
PARENT = "MEGATRON_SSPO_SERVER_PARENT"
TMP = "MEGATRON_SSPO_SERVER_TMP"  # the server's TMPDIR, which is removed when the server ends
FORK = "MEGATRON_SSPO_SERVER_FORK"  # set on a CPU, where workers may be forked
_SHARED_MEMORY = "/dev/shm/sglang_loads_*"
KILL_SECONDS = 10.0  # time limit for the death of killed processes, some of which wait for a device
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Runs the module that the first argument names, in this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ.pop(PARENT)):  # the parent ended before the line above
            sys.exit(1)
    resource_tracker.ensure_running()  # if it started after the next line, it would unblock SIGTERM again
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1))  # SGLang's workers inherit the mask
    if sys.platform == "linux":
        _fork_watcher()
    if not sys.flags.safe_path:
        sys.path.pop(0)  # this file's folder, whose modules could shadow packages
    if os.environ.pop(FORK, ""):
        _fork_workers()
    key = os.environ.pop(KEY)
    module = sys.argv.pop(1)
    sys.argv.append(f"--api-key={key}")  # one argument, because a key may begin with a dash
    if module == "sglang.launch_server":  # a separate API key would be for clients that may not change weights
        sys.argv.append(f"--admin-api-key={key}")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _fork_workers() -> None:
    """Makes SGLang fork its workers where it would spawn them, so that they do not import torch and SGLang again."""
    set_start_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: set_start_method("fork", force=force)


def _fork_watcher() -> None:
    """Forks a process that outlives this one, kills its process group and cleans up.

    SGLang's workers set their parent-death signal late: on a GPU after their imports, which take many seconds. Workers
    of a parent that is killed before that would be left running.
    """
    server = os.getpid()
    if os.fork():
        return
    try:
        os.setsid()  # so that a signal to the server's process group does not reach the watcher
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGRTMIN,))
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGRTMIN)
        if os.getppid() == server:
            signal.sigwait((signal.SIGRTMIN,))
        kill_group(server)  # `ServerProcess` makes the server the leader of a group
        clean_up(os.environ[TMP])
    finally:
        os._exit(1)


def kill_group(leader: int) -> None:
    """Kills a process group, and waits for the death of its processes, so that `clean_up` finds their files unused."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + KILL_SECONDS
    while leader in _living_groups() and time.monotonic() < deadline:
        time.sleep(0.02)


def _living_groups() -> Iterator[int]:
    """Yields the process group of each process of this machine that is not a zombie."""
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path, errors="replace", encoding="utf-8") as file:
            state, _, group = file.read().rpartition(")")[2].split()[:3]
            if state not in "ZX":
                yield int(group)


def clean_up(folder: str) -> None:
    """Removes the files of killed servers: the temporary folder, and shared memory that no process uses."""
    shutil.rmtree(folder, ignore_errors=True)
    if left := glob.glob(_SHARED_MEMORY):  # must come before `_mapped_files`
        for path in set(left) - set(_mapped_files()):
            with contextlib.suppress(OSError):  # another user's, of which /proc does not show which processes use it
                os.unlink(path)


def _mapped_files() -> Iterator[str]:
    """Yields the files that the processes of this machine have open, and the shared memory that they have mapped."""
    for process in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"{process}/fd"):  # a file may be open and not mapped yet
                with contextlib.suppress(OSError):
                    yield os.readlink(f"{process}/fd/{descriptor}")
        with contextlib.suppress(OSError), open(f"{process}/maps", errors="replace", encoding="utf-8") as lines:
            yield from (line.split(maxsplit=5)[5].rstrip("\n") for line in lines if "/dev/shm/" in line)


if __name__ == "__main__":
    main()
