"""Processes that do not outlive the one that started them."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends. Elsewhere than on Linux it looks once, and no more.

    The kernel goes by the thread that started this process: it has to live as long as the parent.

    Args:
        parent: the pid, which the parent itself has noted: it may be gone by now, and then this process ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
