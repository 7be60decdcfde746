"""The GPU of a trainer process."""

import os

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.processes import shared_gpus


def local_device() -> torch.device:
    """Returns this process's GPU: number LOCAL_RANK of those that it sees, or the only one; without CUDA, the CPU.

    A process sees one GPU where the launcher binds one to each, as Slurm does with `--gpus-per-task=1`. That GPU is
    number 0 in every process, whatever LOCAL_RANK is. Where ranks may share GPUs, they are dealt out in turn.

    Raises:
        UserError: LOCAL_RANK is not among the GPUs that the process sees.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count, local_rank = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", 0))
    if count == 1 or shared_gpus.are_meant():
        return torch.device("cuda", local_rank % count)
    if local_rank >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        where = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        raise UserError(
            f"LOCAL_RANK is {local_rank}, and this process sees {count} GPUs{where}: start at most {count} processes "
            "on a node, or let each process see one GPU or all of them"
        )
    return torch.device("cuda", local_rank)
