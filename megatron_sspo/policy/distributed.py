"""Process groups, devices and seeds of one trainer process."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from megatron_sspo.errors import UserError
from megatron_sspo.run import Parallel

_TIMEOUT = timedelta(minutes=30)


def initialize(parallel: Parallel, seed: int) -> torch.device:
    """Joins the job's processes into Megatron's groups and seeds the random generators.

    Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun and srun scripts set them; a process
    without them is a job of one.

    Raises:
        UserError: the number of processes is not what the layout needs.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world_size != parallel.num_processes:
        raise UserError(
            f"the layout data={parallel.data} × tensor={parallel.tensor} × pipeline={parallel.pipeline} × "
            f"context={parallel.context} needs {parallel.num_processes} processes, and {world_size} were started: "
            "change parallel.* or the launcher"
        )
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "nccl" if on_cuda else "gloo"
        if world_size == 1 and "MASTER_ADDR" not in os.environ:
            store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        else:
            dist.init_process_group(backend, rank=rank, world_size=world_size, timeout=_TIMEOUT)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed + 1, force_reset_rng=True)
    return device


def shutdown() -> None:
    """Leaves the groups, so that the process ends without a warning or a wait."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def data_parallel_group() -> Any:
    """The ranks that hold the same shard and different data."""
    return parallel_state.get_data_parallel_group()


def tensor_group() -> Any:
    """The ranks that cut the vocabulary between them; None where one rank has all of it."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return None
    return parallel_state.get_tensor_model_parallel_group()


def context_group() -> Any:
    """The ranks that share each sequence."""
    return parallel_state.get_context_parallel_group()


def is_last_stage() -> bool:
    """Whether this process ends the pipeline, where the loss is."""
    return parallel_state.is_pipeline_last_stage(ignore_virtual=True)
