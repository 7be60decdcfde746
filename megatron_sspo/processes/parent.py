"""A process and the one that started it: who that is, how both end together, and how a process has ended."""

import ctypes
import os
import signal
import sys

from megatron_sspo.errors import UserError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
REPORT = "MEGATRON_SSPO_REPORT_FD"  # the file descriptor for reports; set for the processes that `launch` starts


def is_launched() -> bool:
    """Returns whether torchrun, a Slurm script or `launch` has started this process as a rank of a job."""
    return "WORLD_SIZE" in os.environ


def is_child() -> bool:
    """Returns whether `launch` has started this process."""
    return REPORT in os.environ


def exit_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent, of this pid, ends; exits if that has ended already.

    The kernel watches the thread that started this process, so that thread has to live as long as the parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def describe_exit(code: int) -> str:
    """Describes how a process ended, from its exit code as `subprocess` reports it."""
    if code >= 0:
        return f"ended with exit code {code}"
    known = {number.value: number.name for number in signal.Signals}  # most real-time signals have no name
    return f"was killed by {known.get(-code, f'signal {-code}')}"


def check_tasks() -> None:
    """Raises UserError if a plain srun has started several tasks: each would start all processes of the run."""
    environment = os.environ
    is_task = environment.get("SLURM_TASK_PID") in (str(os.getpid()), str(os.getppid())) and not sys.stdin.isatty()
    if is_task and environment.get("SLURM_NTASKS", "1") != "1" and not is_launched():
        raise UserError(
            f"srun has started this command {environment['SLURM_NTASKS']} times, and each would start all processes of "
            "the run: start it by a script of slurm/, which tells each task its rank, or by srun --ntasks=1"
        )
