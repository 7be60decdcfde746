"""Starts SGLang's server or router, in their own environment: it imports the standard library and theirs alone.

    python serve.py sglang.launch_server --model-path ... (the arguments of that module)

The key comes by the environment, because arguments are for everybody to read in `ps`. The process dies with the one
that started it, and whatever it has started dies with the process. Before Slurm takes a job's nodes away it sends
SIGTERM to every process there; a trainer that is to finish its update still needs its servers, which therefore never
see it.
"""

import ctypes
import os
import runpy
import signal
import sys
from multiprocessing import resource_tracker

KEY = "MEGATRON_SSPO_SERVER_KEY"
PARENT = "MEGATRON_SSPO_SERVER_PARENT"
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
    """A process that outlives this one, to end its process group.

    SGLang's workers ask the kernel to end them with their parent, but only when they have imported what they need,
    which takes many seconds: a parent that is killed before that would leave them behind.
    """
    server = os.getpid()
    if os.fork():
        return
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGRTMIN,))
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGRTMIN)
        if os.getppid() == server:
            signal.sigwait((signal.SIGRTMIN,))
        os.killpg(server, signal.SIGKILL)  # `ServerProcess` makes it the leader of a group
    finally:
        os._exit(1)  # where it leads none, that is


if __name__ == "__main__":
    main()
