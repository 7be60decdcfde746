"""Starts a run's processes on this machine."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 10.0


def is_launched() -> bool:
    """Whether torchrun, a Slurm script or `launch` has started this process as one of a job."""
    return "WORLD_SIZE" in os.environ


def launch(arguments: Sequence[str], num_processes: int) -> int:
    """Runs `megatron-sspo ARGUMENTS` in `num_processes` processes; the exit code of the first that failed, or 0.

    When one fails the others are stopped, and all of them die with this process. torchrun would do, but it wraps
    every failure in a report of its own. Each process gets its share of the cores: two OpenMP pools on the same cores
    spin and are ten times slower.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_processes)),
        **os.environ,
        "WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "megatron_sspo", *arguments],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            preexec_fn=_die_with_parent,
        )
        for rank in range(num_processes)
    ]
    try:
        return _wait(processes)
    finally:
        _stop(processes)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed:
            return abs(failed[0])
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.1)


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
