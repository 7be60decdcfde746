"""Advantages Â_i of the G responses to one prompt, from their rewards r_i: [G] -> [G].

A group of equal rewards has advantages of exactly 0. Any other difference between rewards counts, however small it is:
round rewards if rounding errors of floating point should not count.
"""

import math

import torch
from torch import Tensor


def group_relative(rewards: Tensor, *, divide_by_std: bool = True) -> Tensor:
    """Â_i = (r_i − mean_j r_j) / std_j r_j (GRPO, arXiv 2402.03300; SSPO, arXiv 2602.19327).

    The standard deviation is the sample standard deviation, with G − 1. The papers do not say which one; TRL and verl
    use this one and add a constant (1e-4 and 1e-6), which is not added here.

    Raises:
        ValueError: fewer than two rewards, another shape than [G], or a reward that is not finite.
    """
    centered = _centered(rewards)
    # A group of equal rewards is exactly 0 after _centered, and so is its standard deviation.
    if divide_by_std and centered.any():
        centered = centered / centered.std(correction=1)
    return centered.to(_result_dtype(rewards))


def group_centered(rewards: Tensor) -> Tensor:
    """Â_i = r_i − mean_j r_j (Dr. GRPO, arXiv 2503.20783).

    Raises:
        ValueError: fewer than two rewards, another shape than [G], or a reward that is not finite.
    """
    return group_relative(rewards, divide_by_std=False)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Â_i = r_i − mean_{j ≠ i} r_j (RLOO, arXiv 2402.14740).

    Raises:
        ValueError: fewer than two rewards, another shape than [G], or a reward that is not finite.
    """
    group_size = rewards.numel()
    # r_i − mean_{j≠i} r_j = G/(G−1) (r_i − mean_j r_j)
    return (_centered(rewards) * group_size / (group_size - 1)).to(_result_dtype(rewards))


def _centered(rewards: Tensor) -> Tensor:
    """Returns r_i − mean_j r_j in fp64."""
    if rewards.ndim != 1:
        raise ValueError(f"the rewards of a group have shape [G], and these have {list(rewards.shape)}")
    if rewards.numel() < 2:
        raise ValueError(
            f"an advantage is relative to a group of at least two responses, and this one has {rewards.numel()}"
        )
    for index, reward in enumerate(rewards.tolist()):
        if not math.isfinite(reward):
            raise ValueError(f"reward {index} of the group is {reward}, and must be finite")
    rewards = rewards.double()
    if (rewards == rewards[0]).all():
        # The mean of equal numbers can be one bit off; divided by the standard deviation, this error would become 1.
        return torch.zeros_like(rewards)
    return rewards - rewards.mean()


def _result_dtype(rewards: Tensor) -> torch.dtype:
    return torch.promote_types(rewards.dtype, torch.float32)
