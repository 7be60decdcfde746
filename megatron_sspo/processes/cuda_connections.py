"""Sets the number of hardware queues of a GPU, which CUDA reads once, when it starts."""

import os


def order_kernels(*, tensor: int, context: int) -> None:
    """Sets CUDA_DEVICE_MAX_CONNECTIONS to 1 if tensor- or context-parallel ranks exist, unless it is set already.

    With one queue, kernels start in the order in which they were launched. Megatron relies on this for the overlap of
    these ranks' collectives with matrix products: a collective has to start before the product that it overlaps with,
    which would occupy the whole GPU. Call this before anything asks torch for a GPU.
    """
    if max(tensor, context) > 1:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
