"""GPU memory that trainer and servers use in turns (`rollouts.options.release_memory`)."""

import gc

import torch

from megatron_sspo.processes import agree


def give_back_cached_memory() -> None:
    """Returns this process's unused GPU memory to the driver.

    torch keeps the memory of freed tensors for later tensors, so servers on the same GPU could not use it: after a
    training step, all memory of the activations.
    """
    if torch.cuda.is_available():
        gc.collect()  # tensors in reference cycles
        torch.cuda.empty_cache()


def hand_over_to_servers() -> None:
    """Gives back every rank's unused GPU memory; no rank returns before all have. A collective."""
    give_back_cached_memory()
    agree.barrier()
