"""Gates f(ρ; Â): functions of the importance ratio ρ = π_θ / π_old, computed in log space.

A gate has two methods, both elementwise and broadcasting over `log_ratio` = log ρ and `advantage` = Â:

    log_gate(log ρ, Â) = log f(ρ; Â)
    weight(log ρ, Â)   = w(ρ; Â) = f'(ρ; Â) / f(ρ; Â) · ρ = d log f / d log ρ

Every gate has f'(1) = 1. `AtanLog`, `SigLog`, `ExpSig`, `ExpAtan` and `Gumbel`, the gates of SSPO (arXiv 2602.19327),
also have f(1) = 1. A gate with a temperature uses τ_pos where Â > 0 and τ_neg elsewhere; both are numbers from 1e-12 to
1e12, and others raise ValueError.

The direction of τ: SSPO's gates divide by τ, so that a *larger* τ means a *slower* decay of w. The paper's text sets
τ_neg ≥ τ_pos "to decay more rapidly" for negative advantages, which is true for SAPO's gate, where τ multiplies. This
module follows the paper's formulas and values (τ_neg, τ_pos) = (0.3, 0.2): negative advantages decay more slowly.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from megatron_sspo.objective.checks import check_number

# Above this value every gate that computes ρ is constant to the last bit of fp64. From 88.8 on, exp overflows fp32, and
# its backward is inf · 0. Clamping gives the true limit instead: the gate's bound, and a gradient of 0.
_LARGEST_LOG_RATIO = 80.0


class Gate(Protocol):
    """f(ρ; Â) in log space."""

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """log f(ρ; Â)."""
        ...

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """w(ρ; Â) = f'/f · ρ."""
        ...


@dataclass(frozen=True)
class Identity:
    """f = ρ, w = 1: plain importance sampling."""

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return log_ratio

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return torch.ones_like(log_ratio)


@dataclass(frozen=True)
class Clip:
    """f = min(ρ, 1 + ε_high) where Â > 0, max(ρ, 1 − ε_low) elsewhere; w = 1 inside and 0 where clipped.

    f · Â is PPO's min(ρ Â, clip(ρ, 1 − ε_low, 1 + ε_high) Â). GRPO (arXiv 2402.03300); ε_high > ε_low is the
    Clip-Higher of DAPO (arXiv 2503.14476).

    Raises:
        ValueError: ε_low is outside [0, 1), or ε_high is negative or not finite.
    """

    eps_low: float = 0.2
    eps_high: float = 0.2

    def __post_init__(self) -> None:
        check_number(self, "eps_low", lambda value: 0 <= value < 1, "a number of 0 or more and below 1")
        check_number(self, "eps_high", lambda value: value >= 0, "a finite number of 0 or more")

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        too_high, too_low = self._clipped(log_ratio, advantage)
        bounded_below = torch.where(too_low, math.log1p(-self.eps_low), log_ratio)
        return torch.where(too_high, math.log1p(self.eps_high), bounded_below)

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        too_high, too_low = self._clipped(log_ratio, advantage)
        return (~(too_high | too_low)).to(log_ratio.dtype)

    def _clipped(self, log_ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        positive = _is_positive(advantage, log_ratio)
        too_high = positive & (log_ratio > math.log1p(self.eps_high))
        too_low = ~positive & (log_ratio < math.log1p(-self.eps_low))
        return too_high, too_low


@dataclass(frozen=True)
class _Tempered:
    """The fields τ_neg and τ_pos, defaults from the grid of arXiv 2602.19327.

    Raises:
        ValueError: a temperature is outside of [1e-12, 1e12], where float32 would over- or underflow.
    """

    tau_neg: float = 0.3
    tau_pos: float = 0.2

    def __post_init__(self) -> None:
        for name in ("tau_neg", "tau_pos"):
            check_number(self, name, lambda value: 1e-12 <= value <= 1e12, "a number from 1e-12 to 1e12")

    def temperature(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """τ(Â), in the dtype of `log_ratio`."""
        positive = _is_positive(advantage, log_ratio)
        return torch.where(positive, log_ratio.new_full((), self.tau_pos), log_ratio.new_full((), self.tau_neg))


@dataclass(frozen=True)
class Sigmoid(_Tempered):
    """f = (4/τ) σ(τ(ρ − 1)), w = τ σ(−τ(ρ − 1)) ρ: the gate of SAPO (arXiv 2511.20347).

    f(1) = 2/τ and f'(1) = 1, so pool it arithmetically. τ multiplies, so a larger τ means a faster decay.
    """

    tau_neg: float = 1.05
    tau_pos: float = 1.0

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        tau = self.temperature(log_ratio, advantage)
        return torch.log(4 / tau) + torch.nn.functional.logsigmoid(tau * _ratio_minus_one(log_ratio))

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        tau = self.temperature(log_ratio, advantage)
        return tau * torch.sigmoid(-tau * _ratio_minus_one(log_ratio)) * _ratio(log_ratio)


@dataclass(frozen=True)
class AtanLog(_Tempered):
    """f = exp(τ arctan(log ρ / τ)), w = 1 / (1 + (log ρ / τ)²): the gate that SSPO proposes (arXiv 2602.19327).

    e^{−τπ/2} < f < e^{τπ/2}; w is largest at ρ = 1 and has heavy tails.
    """

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        tau = self.temperature(log_ratio, advantage)
        return tau * torch.atan(log_ratio / tau)

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return 1 / (1 + (log_ratio / self.temperature(log_ratio, advantage)).square())


@dataclass(frozen=True)
class SigLog(_Tempered):
    """f = exp(4τ σ(log ρ / τ) − 2τ), w = 4σ(1 − σ) at log ρ / τ (arXiv 2602.19327).

    e^{−2τ} < f < e^{2τ}; w is largest at ρ = 1.
    """

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        tau = self.temperature(log_ratio, advantage)
        return _centred_sigmoid(log_ratio, tau)

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return _bell(log_ratio / self.temperature(log_ratio, advantage))


@dataclass(frozen=True)
class ExpSig(_Tempered):
    """f = exp(4τ σ((ρ − 1)/τ) − 2τ), w = 4σ(1 − σ) ρ at (ρ − 1)/τ (arXiv 2602.19327).

    f < e^{2τ}. f'/f, not w, is largest at ρ = 1: w peaks a little above 1, and can exceed 1.
    """

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        tau = self.temperature(log_ratio, advantage)
        return _centred_sigmoid(_ratio_minus_one(log_ratio), tau)

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return _bell(_ratio_minus_one(log_ratio) / self.temperature(log_ratio, advantage)) * _ratio(log_ratio)


@dataclass(frozen=True)
class ExpAtan(_Tempered):
    """f = exp(τ arctan((ρ − 1)/τ)), w = ρ / (1 + ((ρ − 1)/τ)²) (arXiv 2602.19327).

    f < e^{τπ/2}. f'/f, not w, is largest at ρ = 1: w peaks a little above 1, and can exceed 1.
    """

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        tau = self.temperature(log_ratio, advantage)
        return tau * torch.atan(_ratio_minus_one(log_ratio) / tau)

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        distance = _ratio_minus_one(log_ratio) / self.temperature(log_ratio, advantage)
        return _ratio(log_ratio) / (1 + distance.square())


@dataclass(frozen=True)
class Gumbel:
    """f = exp(1 − e^{−(ρ − 1)}), w = ρ e^{1 − ρ}: no temperature (arXiv 2602.19327).

    e^{1−e} < f < e; w is largest at ρ = 1.
    """

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return -_expm1(-_ratio_minus_one(log_ratio))

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        # One exponent, because ρ and e^{1−ρ} can each overflow or underflow when their product does not.
        return torch.exp(log_ratio.clamp(max=_LARGEST_LOG_RATIO) - _ratio_minus_one(log_ratio))


def _is_positive(advantage: Tensor, log_ratio: Tensor) -> Tensor:
    return torch.as_tensor(advantage, device=log_ratio.device) > 0


def _ratio(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(max=_LARGEST_LOG_RATIO))


def _ratio_minus_one(log_ratio: Tensor) -> Tensor:
    """Returns ρ − 1, exact near ρ = 1, where the difference of two numbers close to 1 would lose half of the digits."""
    return _expm1(log_ratio.clamp(max=_LARGEST_LOG_RATIO))


def _expm1(x: Tensor) -> Tensor:
    """Returns e^x − 1. The backward of torch.expm1, (e^x − 1) + 1, loses all digits where e^x is small."""
    return torch.where(x > -1, torch.expm1(x), torch.exp(x) - 1)


def _centred_sigmoid(x: Tensor, tau: Tensor) -> Tensor:
    """Returns 4τ σ(x/τ) − 2τ = 2τ tanh(x/2τ).

    Near 0, tanh keeps the digits of the value. Far from 0, the sigmoid of −|x/τ| keeps the digits of the gradient,
    because the backward of tanh is the difference 1 − tanh².
    """
    x = x / tau
    far = torch.sign(x) * (1 - 2 * torch.sigmoid(-x.abs()))
    return 2 * tau * torch.where(x.abs() < 1, torch.tanh(x / 2), far)


def _bell(x: Tensor) -> Tensor:
    """Returns 4σ(x)(1 − σ(x)), exact in both tails."""
    return 4 * torch.sigmoid(x) * torch.sigmoid(-x)
