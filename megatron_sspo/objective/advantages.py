"""Advantages Â_i of the G responses to one prompt, from their rewards r_i: [G] -> [G].

A function with a parameter `rollouts` is given the responses too: the parts of their rewards and their lengths. A
function with an attribute `batch_step` has a second step, which maps all advantages of a cycle [N] to those that are
used [N].

Each function raises ValueError for fewer than two rewards, another shape than [G], or a reward, or a part of one, that
is not finite.

A group of equal rewards has advantages of exactly 0. Rewards that differ by less than 1e-12 of their size are equal;
any other difference counts, however small it is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from megatron_sspo.objective.rounding import ROUNDING, are_equal


def group_relative(rewards: Tensor, *, divide_by_std: bool = True) -> Tensor:
    """Â_i = (r_i − mean_j r_j) / std_j r_j (GRPO, arXiv 2402.03300; SSPO, arXiv 2602.19327).

    The standard deviation is the sample standard deviation, with G − 1. The papers do not say which one; TRL and verl
    use this one and add a constant (1e-4 and 1e-6), which is not added here.
    """
    centered = _centered(rewards)
    # A group of equal rewards is exactly 0 after _centered, and so is its standard deviation.
    if divide_by_std and centered.any():
        centered = _divided_by_std(centered)
    return centered.to(_result_dtype(rewards))


def group_centered(rewards: Tensor) -> Tensor:
    """Â_i = r_i − mean_j r_j (Dr. GRPO, arXiv 2503.20783)."""
    return group_relative(rewards, divide_by_std=False)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Â_i = r_i − mean_{j ≠ i} r_j (RLOO, arXiv 2402.14740)."""
    group_size = rewards.numel()
    # r_i − mean_{j≠i} r_j = G/(G−1) (r_i − mean_j r_j)
    return (_centered(rewards) * group_size / (group_size - 1)).to(_result_dtype(rewards))


def max_rl(rewards: Tensor) -> Tensor:
    """Â_i = (r_i − μ) / μ with μ = mean_j r_j; 0 if μ = 0: MaxRL (arXiv 2602.02710).

    The method was made for rewards of 0 and 1: the fewer responses are right, the more each right one counts. Raises
    ValueError if a reward is negative.
    """
    centered = _centered(rewards)
    if (rewards < 0).any():
        raise ValueError(f"max_rl divides by the mean reward, so rewards must not be negative: {rewards.tolist()}")
    mean = rewards.double().mean()
    if mean > 0:
        centered = centered / mean
    return centered.to(_result_dtype(rewards))


class Response(Protocol):
    """A response, as far as an advantage function of this file reads it."""

    @property
    def reward_parts(self) -> Mapping[str, float]:
        """The parts of its reward, by name."""
        ...

    @property
    def num_response_tokens(self) -> int:
        """|y_i|."""
        ...


def opo(rewards: Tensor, rollouts: Sequence[Response]) -> Tensor:
    """Â_i = r_i − Σ_j |y_j| r_j / Σ_j |y_j|: the baseline of least variance, weighted by length (arXiv 2505.23585)."""
    centered = _centered(rewards)
    lengths = torch.tensor([rollout.num_response_tokens for rollout in rollouts], dtype=torch.float64)
    baseline = (lengths * centered).sum() / lengths.sum().clamp(min=1.0)
    return (centered - baseline).to(_result_dtype(rewards))


def whiten(advantages: Tensor) -> Tensor:
    """(Â − mean Â) / std Â over all advantages of a cycle: [N] -> [N]; 0 if all are equal."""
    if len(advantages) < 2 or are_equal(advantages.tolist()):
        return torch.zeros_like(advantages)
    return _divided_by_std(advantages - advantages.mean())


F = TypeVar("F", bound=Callable[..., Tensor])


def followed_by(step: Callable[[Tensor], Tensor]) -> Callable[[F], F]:
    """Returns a decorator that gives an advantage function its step over all advantages of a cycle."""

    def decorate(function: F) -> F:
        function.batch_step = step  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return decorate


@followed_by(whiten)
def gdpo(rewards: Tensor, rollouts: Sequence[Response]) -> Tensor:
    """Â_i = Σ_k (r_ik − mean_j r_jk) / std_j r_jk, whitened over the cycle: GDPO (arXiv 2601.05242).

    Each part k of the reward is normalized within its group, so that a part of small numbers counts as much as another.
    All parts have the weight 1. A part that a response does not have is 0. Parts that cancel out to 1e-12 of their size
    give exactly 0: whitening would make advantages of the rounding errors.
    """
    names = sorted({name for rollout in rollouts for name in rollout.reward_parts})
    total = torch.zeros_like(_centered(rewards))
    size = torch.zeros_like(total)
    for name in names:
        parts = torch.tensor([rollout.reward_parts.get(name, 0.0) for rollout in rollouts], dtype=torch.float64)
        normalized = group_relative(parts)
        total, size = total + normalized, size + normalized.abs()
    total = total.masked_fill(total.abs() <= ROUNDING * size, 0.0)
    return total.to(_result_dtype(rewards))


@followed_by(whiten)
def reinforce_plus_plus(rewards: Tensor) -> Tensor:
    """Â_i = r_i, whitened over the cycle: REINFORCE++ (arXiv 2501.03262); `Run.kl_in_reward` is near its KL."""
    _centered(rewards)  # for its checks
    return rewards.to(_result_dtype(rewards))


@followed_by(whiten)
def reinforce_plus_plus_baseline(rewards: Tensor) -> Tensor:
    """Â_i = r_i − mean_j r_j, whitened over the cycle: REINFORCE++-baseline (arXiv 2501.03262)."""
    return group_centered(rewards)


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
    if are_equal(rewards.tolist()):  # divided by the standard deviation, rounding errors would become 1
        return torch.zeros_like(rewards)
    rewards = rewards - rewards[0]  # exact for numbers that are close, whose mean would be one of them
    return rewards - rewards.mean()


def _divided_by_std(centered: Tensor) -> Tensor:
    """Divides numbers, not all of them 0, by their sample standard deviation."""
    # a power of two first scales the largest number to about 1, which changes no digit: the squares of 1e-170 and 1e170
    # leave fp64's range
    _, exponent = math.frexp(float(centered.abs().max()))
    scaled = centered * 2.0 ** -max(exponent, -1000)
    return scaled / scaled.std(correction=1)


def _result_dtype(rewards: Tensor) -> torch.dtype:
    return torch.promote_types(rewards.dtype, torch.float32)
