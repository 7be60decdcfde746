"""Starts SGLang's server or router, in their own environment: it imports the standard library and theirs alone.

    python serve.py sglang.launch_server --model-path ... (the arguments of that module)

The key comes by the environment, because arguments are for everybody to read in `ps`. The process dies with the one
that started it, and whatever it has started dies with the process; what SGLang leaves in /dev/shm and in TMPDIR, which
is a folder of the server's own, is removed. Before Slurm takes a job's nodes away it sends SIGTERM to every process
there; a trainer that is to finish its update still needs its servers, which therefore never see it.
"""

import contextlib
import ctypes
import glob
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker

KEY = "MEGATRON_SSPO_SERVER_KEY"
PARENT = "MEGATRON_SSPO_SERVER_PARENT"
TMP = "MEGATRON_SSPO_SERVER_TMP"  # its TMPDIR, which is removed with it
_SHARED_MEMORY = "/dev/shm/sglang_loads_*"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Becomes that module."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ.pop(PARENT)):  # it died before the line above
            sys.exit(1)
    resource_tracker.ensure_running()  # later it would unblock SIGTERM again
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1))  # its workers inherit this
    if sys.platform == "linux":
        _leave_a_watcher()
    sys.path.pop(0)  # this file's folder, where another module is called sglang
    key = os.environ.pop(KEY)
    module = sys.argv.pop(1)
    sys.argv.append(f"--api-key={key}")  # in one word: a key may begin with a dash
    if module == "sglang.launch_server":  # a second key would be for those who may not change weights
        sys.argv.append(f"--admin-api-key={key}")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _leave_a_watcher() -> None:
    """A process that outlives this one, to end its process group and to clean up.

    SGLang's workers ask the kernel to end them with their parent, but only when they have imported what they need,
    which takes many seconds: a parent that is killed before that would leave them behind.
    """
    server = os.getpid()
    if os.fork():
        return
    try:
        os.setsid()  # what kills the group leaves the watcher alone
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGRTMIN,))
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGRTMIN)
        if os.getppid() == server:
            signal.sigwait((signal.SIGRTMIN,))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server, signal.SIGKILL)  # `ServerProcess` makes it the leader of a group
        clean_up(os.environ[TMP])
    finally:
        os._exit(1)  # where it leads none, that is


def clean_up(folder: str) -> None:
    """Removes what servers that were killed have left: a temporary folder, and shared memory that nobody uses."""
    shutil.rmtree(folder, ignore_errors=True)
    left = [path for path in glob.glob(_SHARED_MEMORY) if _is_ours(path)]  # before the look at who uses it
    if left:
        used = set(_mapped_files())
        for path in left:
            if path not in used:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _is_ours(path: str) -> bool:
    """Only then can be seen who uses it."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_uid == os.geteuid()
    return False


def _mapped_files() -> Iterator[str]:
    """The shared memory of SGLang that the processes of this machine have open or mapped."""
    for process in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"{process}/fd"):  # opened, and not mapped yet
                with contextlib.suppress(OSError):
                    yield os.readlink(f"{process}/fd/{descriptor}")
        with contextlib.suppress(OSError), open(f"{process}/maps", errors="replace", encoding="utf-8") as lines:
            yield from (line.split(maxsplit=5)[5].rstrip("\n") for line in lines if "/dev/shm/" in line)


if __name__ == "__main__":
    main()
