"""Factors that are numbers: weights of tokens and sequences by how far the policy has moved."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_sspo.objective.checks import check_number
from megatron_sspo.objective.inputs import TokenInputs
from megatron_sspo.objective.zoo.prefix import before


@dataclass(frozen=True)
class GammaKernel:
    """m_t = W_i^k e^{λ (1 − W_i)} with W_i = Π_t ρ_it, for every token of the sequence: VESPO (arXiv 2602.10693).

    (k, λ) depends on the sign of Â. m = 1 at W = 1. The defaults are those of the authors' code and scripts, and of
    TRL; the documentation in that code prints (2, 1.5) and (4, 2.5). The code clamps log W to [−18.4, 20], which
    changes no m above 10⁻¹⁶.

    Raises:
        ValueError: a number is negative or not finite.
    """

    k_pos: float = 2.0
    lambda_pos: float = 3.0
    k_neg: float = 3.0
    lambda_neg: float = 2.0

    def __post_init__(self) -> None:
        for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg"):
            check_number(self, name, lambda value: value >= 0, "a finite number of 0 or more")

    def __call__(self, inputs: TokenInputs) -> Tensor:
        log_ratio = inputs.segments.spread(inputs.segments.sum(inputs.log_ratio))  # log W [T]
        positive = inputs.advantages > 0

        def of_sign(pos: float, neg: float) -> Tensor:
            return torch.where(positive, log_ratio.new_full((), pos), log_ratio.new_full((), neg))

        k, rate = of_sign(self.k_pos, self.k_neg), of_sign(self.lambda_pos, self.lambda_neg)
        # beyond 80 the kernel is 0 to the last bit, unless λ is 0
        return torch.exp(k * log_ratio - rate * torch.expm1(log_ratio.clamp(max=80.0)))


@dataclass(frozen=True)
class QuadraticPenalty:
    """m_t = 1 − sign(Â) c (ρ − 1) / ε, which makes ρ Â the gradient of ρ Â − |Â| c (ρ − 1)² / 2ε.

    c = 1 is SPO (arXiv 2401.16025); c = π_old(y_t) is DRPO (arXiv 2606.09821), whose region is one of total variation.
    Beyond the region m_t is negative, and the gradient leads back. The gradient is that of the papers; the value is
    m ρ Â.

    Raises:
        ValueError: ε is not a finite number above 0.
    """

    eps: float = 12.5
    by_probability: bool = True

    def __post_init__(self) -> None:
        check_number(self, "eps", lambda value: value > 0, "a finite number above 0")

    def __call__(self, inputs: TokenInputs) -> Tensor:
        if self.by_probability:
            moved = inputs.log_probs.exp() - inputs.old_log_probs.exp()
        else:
            moved = torch.expm1(inputs.log_ratio.clamp(max=80.0))  # finite in float32, because 0 · inf is NaN
        return 1 - torch.sign(inputs.advantages) * moved / self.eps


@dataclass(frozen=True)
class Tapered:
    """m_t = 1 where Â > 0, and min(Π_s ρ_is, 1) elsewhere, for every token of the sequence: TOPR (arXiv 2503.14286).

    Bad responses count for less as the policy leaves them; good ones are learned from as in supervised learning.
    """

    def __call__(self, inputs: TokenInputs) -> Tensor:
        log_ratio = inputs.segments.spread(inputs.segments.sum(inputs.log_ratio))
        return torch.where(inputs.advantages > 0, 0.0, log_ratio.clamp(max=0.0)).exp()


@dataclass(frozen=True)
class LeastPrefix:
    """m_t = clip(ρ_t · min_{s<t} ρ_s, floor, cap), where the first token has ρ_1 alone: MinPRO (arXiv 2601.22718).

    The least ratio before a token stands in for the product of all of them, which has a large variance.

    Raises:
        ValueError: the bounds violate 0 ≤ floor ≤ 1 ≤ cap < ∞.
    """

    cap: float = 5.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_number(self, "cap", lambda value: value >= 1, "a finite number of 1 or more")
        check_number(self, "floor", lambda value: 0 <= value <= 1, "a number from 0 to 1")

    def __call__(self, inputs: TokenInputs) -> Tensor:
        least = before(inputs.log_ratio, inputs.segments, torch.minimum, math.inf)
        log_weight = inputs.log_ratio + torch.where(least == math.inf, 0.0, least)
        return log_weight.clamp(math.log(self.floor) if self.floor else -math.inf, math.log(self.cap)).exp()


@dataclass(frozen=True)
class GaussianDecay:
    """m_t = e^{−(ρ − 1)² / 2σ²} where ρ has moved in the direction of Â, 1 elsewhere: MASPO (arXiv 2602.17550).

        σ = clip(σ_0 / π_old(y_t)^α, σ_0, 10) · clip(c, 0.1, 10)
        c = 1 + β_pos Â where Â > 0, 1 / (1 − β_neg Â) elsewhere

    Unlikely tokens may move further, and the better a response the further. The formula, without a gradient of its own,
    and the values are those of the authors' code; for a model of 1.5B it advises α = 0.5.

    Raises:
        ValueError: σ_0 is not above 0 and at most 10, or another number is negative or not finite.
    """

    sigma: float = 1.0  # σ_0
    alpha: float = 0.3
    beta_pos: float = 0.03
    beta_neg: float = 0.03

    def __post_init__(self) -> None:
        check_number(self, "sigma", lambda value: 0 < value <= 10, "a number above 0 and at most 10")
        for name in ("alpha", "beta_pos", "beta_neg"):
            check_number(self, name, lambda value: value >= 0, "a finite number of 0 or more")

    def __call__(self, inputs: TokenInputs) -> Tensor:
        advantage, log_ratio = inputs.advantages, inputs.log_ratio
        of_mass = (self.sigma * torch.exp(-self.alpha * inputs.old_log_probs)).clamp(self.sigma, 10.0)
        of_sign = torch.where(advantage > 0, 1 + self.beta_pos * advantage, 1 / (1 - self.beta_neg * advantage))
        distance = torch.expm1(log_ratio.clamp(max=40.0)) / (of_mass * of_sign.clamp(0.1, 10.0))
        moved_along = torch.sign(advantage) * torch.sign(log_ratio) > 0
        return torch.where(moved_along, torch.exp(-distance.square() / 2), 1.0)
