"""Process groups, devices and seeds of one trainer process."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch.distributed.rendezvous import rendezvous

from megatron_sspo.errors import UserError, first_line
from megatron_sspo.policy.with_cuda.device import local_device
from megatron_sspo.processes import agree, shared_gpus
from megatron_sspo.processes.hang import silence_limited
from megatron_sspo.run import Parallel, Run

_LAUNCHER_GRACE_SECONDS = 3.0  # time for the launcher to see which process ended first, and to end this one


@contextmanager
def process_group(run: Run) -> Iterator[torch.device]:
    """Joins a run's process group, ends this process if it hangs inside, and leaves the group after a clean end.

    A collective. A process that makes no progress for `run.distributed_timeout` ends with the stacks of its threads.

    Raises:
        UserError: another process has ended, so that a collective failed.
    """
    try:
        with silence_limited(run.distributed_timeout):
            yield initialize(run.parallel, run.seed, run.distributed_timeout)
            agree.barrier()  # a rank that ends long before rank 0 has cleaned up makes srun --wait kill the others
            shutdown()
    except RuntimeError as error:
        if not agree.is_broken_connection(error):
            raise
        time.sleep(_LAUNCHER_GRACE_SECONDS)
        raise UserError(
            "another process of the run has ended, and the connection to it broke: see the log of that process for "
            "the cause, then continue with --resume"
        ) from error


def initialize(parallel: Parallel, seed: int, join_seconds: float = 1800.0) -> torch.device:
    """Joins the job's processes into Megatron's groups and seeds the random generators. A collective.

    Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun and srun scripts set them; a process
    without them is a job of one process. No collective has a timeout but that of `silence_limited`.

    Args:
        join_seconds: the time in which all processes have to join.

    Raises:
        UserError: the number of processes is not what the layout needs, they do not all join in time, or there is no
            GPU for this one.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world_size != parallel.num_processes:
        raise UserError(
            f"the layout data={parallel.data} × tensor={parallel.tensor} × pipeline={parallel.pipeline} × "
            f"context={parallel.context} needs {parallel.num_processes} processes, and {world_size} were started: "
            "change parallel.* or the launcher"
        )
    device = local_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        shared_gpus.name_host(rank)
    if not dist.is_initialized():
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=rendezvous_store(rank, world_size, join_seconds),
            rank=rank,
            world_size=world_size,
            timeout=agree.COLLECTIVE_TIMEOUT,
        )
        agree.make_control_group()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
        distributed_timeout_minutes=round(agree.COLLECTIVE_TIMEOUT.total_seconds() / 60),
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed + 1, force_reset_rng=True)
    return device


def rendezvous_store(rank: int, world_size: int, timeout: float) -> Any:
    """Returns the store through which all processes find each other. Raises UserError if not all join in time."""
    if world_size == 1 and not {"WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    try:
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timedelta(seconds=timeout)))
    except RuntimeError as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"the {world_size} processes did not all connect to {place} within {timeout:g} s ({first_line(error)}): "
            "check that each of them was started and can reach that address, or raise distributed_timeout"
        ) from error
    return store


def shutdown() -> None:
    """Destroys the process groups, so that the process ends without a warning or a wait."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
