"""Factors that are numbers: a kernel of the sequence's ratio, and the gradient of a quadratic penalty."""

from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_sspo.objective.checks import check_number
from megatron_sspo.objective.inputs import TokenInputs


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

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

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

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def __call__(self, inputs: TokenInputs) -> Tensor:
        if self.by_probability:
            moved = inputs.log_probs.exp() - inputs.old_log_probs.exp()
        else:
            moved = torch.expm1(inputs.log_ratio.clamp(max=80.0))  # finite in float32, because 0 · inf is NaN
        return 1 - torch.sign(inputs.advantages) * moved / self.eps
