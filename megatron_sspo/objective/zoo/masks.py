"""Factors of 0 and 1: tokens without a gradient because the policy has moved too far there."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from megatron_sspo.objective.checks import check_name, check_number
from megatron_sspo.objective.divergence import binary_kl
from megatron_sspo.objective.inputs import TokenInputs
from megatron_sspo.objective.zoo.prefix import before

Anchor = Literal["old", "rollout"]
Divergence = Literal["tv", "kl"]


class _Anchored:
    anchor: Anchor

    @property
    def needs(self) -> tuple[str, ...]:
        return ("rollout_log_probs",) if self.anchor == "rollout" else ()


@dataclass(frozen=True)
class EntropyBand:
    """m_t = 1 where (1 − low) H_old ≤ H_θ ≤ (1 + high) H_old, 0 elsewhere: ERC (arXiv 2512.05591).

    H is the entropy of the whole distribution at the token. The bounds are those of the authors' script. Their code
    leaves the value of other tokens as it is and takes their gradient; here both are 0.

    Raises:
        ValueError: a bound is negative or not finite, or `low` is above 1.
    """

    low: float = 0.05
    high: float = 0.05
    needs: ClassVar = ("entropy", "old_entropy")

    def __post_init__(self) -> None:
        check_number(self, "low", lambda value: 0 <= value <= 1, "a number from 0 to 1")
        check_number(self, "high", lambda value: value >= 0, "a finite number of 0 or more")

    def __call__(self, inputs: TokenInputs) -> Tensor:
        entropy, old = inputs.others["entropy"], inputs.others["old_entropy"]
        kept = (entropy >= (1 - self.low) * old) & (entropy <= (1 + self.high) * old)
        return kept.to(inputs.log_probs.dtype)


@dataclass(frozen=True)
class TrustRegion(_Anchored):
    """m_t = 0 where π_θ has moved from π in the direction of Â by more than a divergence δ, 1 elsewhere: DPPO.

    With p = π_θ(y_t) and q = π(y_t), the divergence is the total variation |p − q| or the KL of two events, this token
    and all others, q log(q/p) + (1 − q) log((1 − q)/(1 − p)) (arXiv 2602.04879). π is π_old or the engine's policy.

    Raises:
        ValueError: a name is unknown, or δ is not a finite number above 0.
    """

    delta: float = 0.15
    divergence: Divergence = "tv"
    anchor: Anchor = "old"
    both_ways: bool = False

    def __post_init__(self) -> None:
        check_number(self, "delta", lambda value: value > 0, "a finite number above 0")
        check_name(self, "divergence", get_args(Divergence))
        check_name(self, "anchor", get_args(Anchor))

    def __call__(self, inputs: TokenInputs) -> Tensor:
        log_p, log_q = inputs.log_probs, inputs.anchor(self.anchor)
        distance = (log_p.exp() - log_q.exp()).abs() if self.divergence == "tv" else binary_kl(log_q, log_p)
        is_masked = distance > self.delta
        if not self.both_ways:
            is_masked &= torch.where(inputs.advantages > 0, log_p > log_q, log_p < log_q)
        return (~is_masked).to(log_p.dtype)


@dataclass(frozen=True)
class PrefixBudget(_Anchored):
    """m_t = 0 where ρ has moved in the direction of Â and w_t D_t > min(δ, δ + δ_b W_t − S_t), 1 elsewhere: CPPO.

    D_t = |π_θ(y_t) − π(y_t)|, w_t = 1 − (1 − w_min) (t − 1)/(|y_i| − 1), and W_t and S_t are the sums of w_s and of
    w_s D_s over the tokens s < t (arXiv 2606.10968). Early tokens have the narrower region, and what a prefix has
    moved beyond δ_b on average narrows the region of the tokens after it. π is π_old or the engine's policy.

    Raises:
        ValueError: δ or δ_b is not a finite number above 0, w_min is not above 0 and at most 1, or the anchor is
            unknown.
    """

    delta: float = 0.15
    prefix_delta: float = 0.015  # δ_b
    min_weight: float = 0.8  # w_min
    anchor: Anchor = "old"

    def __post_init__(self) -> None:
        for name in ("delta", "prefix_delta"):
            check_number(self, name, lambda value: value > 0, "a finite number above 0")
        check_number(self, "min_weight", lambda value: 0 < value <= 1, "a number above 0 and at most 1")
        check_name(self, "anchor", get_args(Anchor))

    def __call__(self, inputs: TokenInputs) -> Tensor:
        segments, anchor = inputs.segments, inputs.anchor(self.anchor)
        distance = (inputs.log_probs.exp() - anchor.exp()).abs().double()  # D_t
        place = before(torch.ones_like(distance), segments, torch.add, 0.0)  # t − 1
        last = segments.spread((segments.lengths - 1).clamp(min=1))
        weight = 1 - (1 - self.min_weight) * place / last  # w_t
        weighted = weight * distance
        spent = before(weighted, segments, torch.add, 0.0)  # S_t
        budget = self.prefix_delta * before(weight, segments, torch.add, 0.0) - spent
        moved_along = torch.sign(inputs.advantages) * torch.sign(inputs.log_probs - anchor) > 0
        return (~(moved_along & (weighted > self.delta + budget.clamp(max=0.0)))).to(anchor.dtype)


@dataclass(frozen=True)
class OffPolicySequences(_Anchored):
    """m_t = 0 where Â < 0 and (1/|y_i|) Σ_t (log π − log π_θ) > δ, 1 elsewhere: off-policy sequence masking.

    Of DeepSeek-V3.2 (arXiv 2512.02556), whose π is the engine's policy; δ is not printed there. TRL's example is 0.5.

    Raises:
        ValueError: δ is not a finite number of 0 or more, or the anchor is unknown.
    """

    delta: float = 0.5
    anchor: Anchor = "old"

    def __post_init__(self) -> None:
        check_number(self, "delta", lambda value: value >= 0, "a finite number of 0 or more")
        check_name(self, "anchor", get_args(Anchor))

    def __call__(self, inputs: TokenInputs) -> Tensor:
        segments = inputs.segments
        moved = segments.spread(segments.mean(inputs.anchor(self.anchor) - inputs.log_probs))
        return (~((inputs.advantages < 0) & (moved > self.delta))).to(inputs.log_probs.dtype)
