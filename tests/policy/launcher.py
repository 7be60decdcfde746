"""Starts a script in several processes and joins them into one group."""

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.forking import forkserver


def launch(script: Path, num_processes: int, *arguments: object, seconds: float = 240) -> None:
    """Runs the script as every rank of a group and waits for all; the first failure ends the rest and the test."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(num_processes)]
        processes = []
        for rank, log in enumerate(logs):
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_processes),
                "OMP_NUM_THREADS": "1",
                "RENDEZVOUS": f"{folder}/rendezvous",
            }
            processes.append(_context().Process(target=_run, args=(script, [*map(str, arguments)], variables, log)))
            processes[-1].start()
        try:
            _wait(processes, logs, time.monotonic() + seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()


@cache
def _context() -> Any:
    """Returns how processes are started: as forks, or anew where what forks have imported has begun to use CUDA."""
    import torch

    if torch.cuda.is_available():
        trial = forkserver.Process(target=torch.cuda.init)
        trial.start()
        trial.join()
        if trial.exitcode != 0:
            return multiprocessing.get_context("spawn")
    return forkserver


def _run(script: Path, arguments: list[str], variables: Mapping[str, str], log: Path) -> None:
    """Runs the script in this process, with its output in `log`."""
    os.environ.update(variables)
    warnings.simplefilter("ignore")
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def join() -> None:
    """Joins this process into the group of `launch`, NCCL's where there is a GPU; called by the script."""
    import torch
    import torch.distributed as dist

    from megatron_sspo.policy.with_cuda.device import local_device
    from megatron_sspo.processes import agree, shared_gpus

    torch.set_num_threads(1)
    _share_the_gloo_device()
    rank, device = int(os.environ["RANK"]), local_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        shared_gpus.name_host(rank)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=120),
    )
    agree.make_control_group()


def _share_the_gloo_device() -> None:
    """Gives all gloo groups of this process one device.

    By default each group has its own, whose thread wakes up a hundred times a second. Megatron makes some forty groups
    for a layout, and those of several layouts would take a third of a core for each process.
    """
    from torch.distributed import ProcessGroupGloo, distributed_c10d

    device = ProcessGroupGloo.create_default_device()

    class Gloo(ProcessGroupGloo):
        def __init__(self, store, rank, size, timeout):
            options = ProcessGroupGloo._Options()
            options._devices, options._timeout = [device], timeout
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = Gloo


def _wait(processes: list[Any], logs: list[Path], deadline: float) -> None:
    while any(process.exitcode is None for process in processes):
        if any(process.exitcode for process in processes) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for rank, process in enumerate(processes):
        if code := process.exitcode:
            pytest.fail(f"rank {rank} ended with {code}:\n{logs[rank].read_text()[-6000:]}", pytrace=False)
    for rank, process in enumerate(processes):
        if process.exitcode is None:
            pytest.fail(f"rank {rank} did not end in time:\n{logs[rank].read_text()[-6000:]}", pytrace=False)
