"""Environment variables that the trainer and its servers must share, and variables of the trainer alone."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from megatron_sspo.rollout.servers.options import Options

# Variables that torchrun, srun scripts and users set for the trainer's ranks. A server would take the trainer's ranks
# and addresses for its own. The allocator's settings are for training: servers that release their memory, and CUDA
# IPC, do not work with expandable segments.
_TRAINER_ONLY = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "NCCL_HOSTID"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    )
)
_TRAINER_ONLY_PREFIXES = ("GROUP_", "ROLE_", "TORCHELASTIC_")
_CUMEM = "NCCL_CUMEM_ENABLE"


def without_trainer_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without the variables that describe a rank of the trainer, and its allocator."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _TRAINER_ONLY and not name.startswith(_TRAINER_ONLY_PREFIXES)
    }


def agree_on_nccl(engine: str, options: Mapping[str, Any]) -> None:
    """Sets NCCL_CUMEM_ENABLE of this process as the servers will have it, unless it is set already.

    NCCL's ranks must agree on it within a communicator, and SGLang sets it in its servers: to 0, or to 1 with
    `enable_symm_mem`. It is set here for servers that get their weights by NCCL, and for servers that the run starts on
    its own machine, which inherit the value. Call it before the first communicator, since NCCL reads it only once.
    Engines other than "sglang" are left alone.
    """
    if engine != "sglang" or not torch.cuda.is_available():
        return
    chosen = Options(**options)
    if chosen.transport == "distributed" or chosen.release_memory or not chosen.urls:
        os.environ.setdefault(_CUMEM, str(int(bool((chosen.server or {}).get("enable_symm_mem")))))
