"""Sets the number of hardware queues of a GPU, which CUDA reads once, when it starts."""

import os
from collections.abc import Mapping
from typing import Any


def order_kernels(*, tensor: int, context: int, megatron: Mapping[str, Any]) -> None:
    """Sets CUDA_DEVICE_MAX_CONNECTIONS to 1 if tensor- or context-parallel ranks exist, unless it is set already.

    With one queue, kernels start in the order in which they were launched. Megatron relies on this for the overlap of
    these ranks' collectives with matrix products: a collective has to start before the product that it overlaps with,
    which would occupy the whole GPU. Call this before anything asks torch for a GPU.

    Args:
        megatron: the user's fields of Megatron's configuration. If they ask for the overlap of experts' all-to-all,
            which needs several queues, nothing is set.
    """
    if max(tensor, context) > 1 and not megatron.get("overlap_moe_expert_parallel_comm"):
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
