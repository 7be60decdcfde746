"""Terms that are added to an objective's loss: divergence from a reference policy, and entropy."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from megatron_sspo.objective.average import Average, OverSequences, shares_of
from megatron_sspo.objective.checks import check_name, check_number
from megatron_sspo.objective.segments import Segments

KlEstimator = Literal["k2", "k3"]


def kl(log_probs: Tensor, reference_log_probs: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimates KL(π_θ ‖ π_ref) at each token that π_θ sampled: [T], [T] -> [T], differentiable in `log_probs`.

    With r = log π_ref − log π_θ (Schulman, http://joschu.net/blog/kl-approx.html):

        k2 = r² / 2          as a loss, its expected gradient is the gradient of the KL
        k3 = e^r − 1 − r     unbiased, never negative; as a loss, its expected gradient is that of KL(π_ref ‖ π_θ)

    k1 = −r is none of them: its expected gradient is zero, so as a loss it penalizes nothing. Raises ValueError if the
    estimator is unknown.
    """
    log_ratio = reference_log_probs - log_probs
    if estimator == "k2":
        return log_ratio.square() / 2
    if estimator == "k3":
        return torch.expm1(log_ratio) - log_ratio
    raise ValueError(f"the KL estimator is {estimator!r}, and must be one of {', '.join(get_args(KlEstimator))}")


@dataclass(frozen=True)
class Penalties:
    """Σ_i (a_i/|y_i|) Σ_t ( kl_coef · KL_it − entropy_coef · H_it ), with a_i of the objective's average.

    It is added to `Sums.loss` and divided by the same number: a penalty is averaged as the objective is.

    Raises:
        ValueError: a coefficient is not finite, `kl_coef` is negative, or the estimator is unknown.
    """

    kl_coef: float = 0.0  # β
    kl_estimator: KlEstimator = "k3"  # k2 or k3
    entropy_coef: float = 0.0  # a positive value rewards entropy

    def __post_init__(self) -> None:
        check_number(self, "kl_coef", lambda value: value >= 0, "a finite number of 0 or more")
        check_name(self, "kl_estimator", get_args(KlEstimator))
        check_number(self, "entropy_coef", lambda value: True, "a finite number")

    def __call__(
        self,
        log_probs: Tensor,
        entropy: Tensor | None,
        reference_log_probs: Tensor | None,
        segments: Segments,
        average: Average = OverSequences(),  # noqa: B008 (frozen)
    ) -> Tensor:
        """Computes the penalty of a microbatch: [T] each -> scalar.

        A term whose coefficient is 0 needs no input. Raises ValueError if an input that a coefficient needs is None,
        has another shape, or is in half precision.
        """
        segments.check_tokens("log_probs", log_probs)
        total, share = log_probs.new_zeros(()), shares_of(average, segments)
        if self.kl_coef:
            if reference_log_probs is None:
                raise ValueError(f"kl_coef is {self.kl_coef}, and there are no reference_log_probs to take the KL to")
            segments.check_tokens("reference_log_probs", reference_log_probs)
            divergence = kl(log_probs, reference_log_probs, self.kl_estimator)
            total = total + self.kl_coef * (share * segments.mean(divergence)).sum()
        if self.entropy_coef:
            if entropy is None:
                raise ValueError(f"entropy_coef is {self.entropy_coef}, and no entropy was computed")
            segments.check_tokens("entropy", entropy)
            total = total - self.entropy_coef * (share * segments.mean(entropy)).sum()
        return total
