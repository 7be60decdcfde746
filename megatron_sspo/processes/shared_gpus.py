"""Several ranks on one GPU: NCCL takes them only where its own variables say that they are meant."""

import os
import socket

import torch
from torch.cuda import nccl

_ENABLE, _HOST = "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_HOSTID"
_OLDEST_WITH_ENABLE = (2, 30)


def are_meant() -> bool:
    """Returns whether this process's environment lets ranks share a GPU."""
    return os.environ.get(_ENABLE) == "1" or bool(os.environ.get(_HOST))


def name_host(rank: int) -> None:
    """Gives this rank a host of its own in NCCL before 2.30, which knows no other way to share a GPU.

    It takes ranks of different hosts for ranks on different GPUs. Call it before the first communicator.
    """
    if os.environ.get(_ENABLE) == "1" and torch.cuda.is_available() and nccl.version() < _OLDEST_WITH_ENABLE:
        os.environ.setdefault(_HOST, f"{socket.gethostname()}-{rank}")
