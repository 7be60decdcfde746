"""Starts SGLang's server or router, in their own environment: it imports the standard library and theirs alone.

    python serve.py sglang.launch_server --model-path ... (the arguments of that module)

The key comes by the environment, because arguments are for everybody to read in `ps`. The process dies with the one
that started it, and SGLang's workers die with the process. Before Slurm takes a job's nodes away it sends SIGTERM to
every process there; a trainer that is to finish its update still needs its servers, which therefore never see it.
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
    sys.path.pop(0)  # this file's folder, where another module is called sglang
    key = os.environ.pop(KEY)
    module = sys.argv.pop(1)
    sys.argv += ["--api-key", key]
    if module == "sglang.launch_server":  # a second key would be for those who may not change weights
        sys.argv += ["--admin-api-key", key]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
