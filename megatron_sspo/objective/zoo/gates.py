"""Gates of other papers.

Some of these papers stop the gradient of a part of their formula, so that the gradient is not that of the value. Such a
gate says so: its `weight` is the w for which f w Â ∇ log π is the paper's gradient, and not d log f / d log ρ.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_sspo.objective.checks import check_number
from megatron_sspo.objective.gates import Clip


@dataclass(frozen=True)
class Truncated:
    """f = clip(ρ, floor, cap), w = 1 everywhere: sg(clip ρ) Â log π, of CISPO (arXiv 2506.13585).

    Every token keeps a gradient, with a bounded weight. The gradient is that of the paper; the value is f Â, and not
    sg(f) Â log π. MiniMax has no lower bound and does not print the upper one; 5 is that of ScaleRL (arXiv 2510.13786),
    as in TRL. verl's bounds are 1 ± ε.

    Raises:
        ValueError: the bounds violate 0 ≤ floor ≤ 1 ≤ cap < ∞.
    """

    cap: float = 5.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_number(self, "cap", lambda value: value >= 1, "a finite number of 1 or more")
        check_number(self, "floor", lambda value: 0 <= value <= 1, "a number from 0 to 1")

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        low = math.log(self.floor) if self.floor else -math.inf
        return log_ratio.clamp(low, math.log(self.cap))

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return torch.ones_like(log_ratio)


@dataclass(frozen=True)
class Score:
    """f = 1, w = 1: Â log π, the gradient of REINFORCE, whatever ρ is.

    The gradient is that of ρ / sg(ρ), and the value is 1. A factor gives it a weight, as in VESPO.
    """

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return torch.zeros_like(log_ratio)

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return torch.ones_like(log_ratio)


@dataclass(frozen=True)
class Smoothed:
    """f = (1 − α) ρ + α, w = (1 − α) ρ / f: π_θ smoothed towards π_old, of PSPO (arXiv 2509.21282).

    f(1) = 1 and f'(1) = 1 − α, so on-policy the gradient is 1 − α of that of REINFORCE. α = 0.1 is the value of the
    authors' contribution to TRL (#4548).

    Raises:
        ValueError: α is not above 0 and below 1.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        check_number(self, "alpha", lambda value: 0 < value < 1, "a number above 0 and below 1")

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        smoothed = math.log1p(-self.alpha) + log_ratio
        return torch.logaddexp(smoothed, torch.full_like(log_ratio, math.log(self.alpha)))

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return torch.sigmoid(log_ratio + math.log((1 - self.alpha) / self.alpha))


@dataclass(frozen=True)
class Preserving(Clip):
    """f of `Clip`; w = 1 inside, β_low where Â ≤ 0 and ρ < 1 − ε_low, β_high where Â > 0 and ρ > 1 + ε_high.

    β (1 ∓ ε) ρ / sg(ρ) outside the clip, of CE-GPPO (arXiv 2509.20712): clipped tokens keep a bounded gradient. The
    gradient is that of the paper; the value is PPO's, without β. β = 1 is GPPO (arXiv 2508.07629), β = 0 is `Clip`. The
    defaults are those of the authors' script for 7B; that for 1.5B has β_low = 0.5.

    Raises:
        ValueError: ε_low is outside [0, 1), ε_high or a β is negative or not finite.
    """

    beta_low: float = 0.75
    beta_high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta_low", "beta_high"):
            check_number(self, name, lambda value: value >= 0, "a finite number of 0 or more")

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        too_high, too_low = self._clipped(log_ratio, advantage)
        inside = torch.where(too_low, log_ratio.new_full((), self.beta_low), log_ratio.new_ones(()))
        return torch.where(too_high, log_ratio.new_full((), self.beta_high), inside)


@dataclass(frozen=True)
class Flipped(Clip):
    """f = min(1/ρ, cap) where Â > 0 and min(ρ, cap) elsewhere, with w = 1; w = 0 where PPO clips: ASPO.

    ASPO (arXiv 2510.06062) flips the ratio of tokens with positive advantage, so that unlikely ones learn more. Where
    PPO would clip, at ρ > 1 + ε_high for Â > 0 and ρ < 1 − ε_low for Â ≤ 0, f stays at the bound and there is no
    gradient. Beyond the cap a token keeps its gradient, with the cap as its weight. The formula is that of the authors'
    code, without its other bounds for tokens of high entropy; its bounds are 0.2 and 0.4, and its cap is 3.

    Raises:
        ValueError: ε_low is outside [0, 1), ε_high is negative or not finite, or cap is below 1 or not finite.
    """

    cap: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "cap", lambda value: value >= 1, "a finite number of 1 or more")

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        clipped = super().log_gate(log_ratio, advantage)
        positive = torch.as_tensor(advantage, device=log_ratio.device) > 0
        return torch.where(positive, -clipped, clipped).clamp(max=math.log(self.cap))


@dataclass(frozen=True)
class Decayed(Clip):
    """f of ρ inside the clip, ρ (ρ / (1 − ε_low))ⁿ below it and ρ ((1 + ε_high) / ρ)^{1/m} above it; w = 1: DGPO.

    Below is where Â ≤ 0 and ρ < 1 − ε_low, above is where Â > 0 and ρ > 1 + ε_high. DGPO (arXiv 2603.14389) multiplies
    ∇ρ of clipped tokens by a factor that is 1 at the bound, falls off it, and has no gradient of its own. Value and
    gradient are those of the authors' code, and so are the defaults; it advises n = 2 for a model of 1.5B. Larger n: a
    faster decay; larger m: a slower one.

    Raises:
        ValueError: ε_low is outside [0, 1), ε_high or n is negative or not finite, or m is below 1 or not finite.
    """

    n: float = 1.0
    m: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "n", lambda value: value >= 0, "a finite number of 0 or more")
        check_number(self, "m", lambda value: value >= 1, "a finite number of 1 or more")

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        beyond = log_ratio - super().log_gate(log_ratio, advantage)  # by how much log ρ is outside the clip
        return log_ratio + torch.where(beyond < 0, self.n * beyond, -beyond / self.m)

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return torch.ones_like(log_ratio)
