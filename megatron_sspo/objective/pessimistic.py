"""`Pessimistic`: a gate that acts only where the ratio has moved in the direction of its advantage."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_sspo.objective.checks import check_gate, check_number
from megatron_sspo.objective.gates import Gate


@dataclass(frozen=True)
class Pessimistic:
    """f_p = f where Â log ρ ≥ 0, and f_p = ρ where Â log ρ < 0; w_p = w and w_p = 1.

    With a soft gate f, the token weight w falls on both sides of ρ = 1. On the restoring side, where a token has moved
    against its advantage (Â > 0 and ρ < 1, or Â < 0 and ρ > 1), a small w removes the gradient that would move it back.
    f_p keeps this gradient, as the minimum in PPO's min(ρ Â, clip(ρ) Â) does.

    * f_p is continuous and monotone, f_p(1) = f_p'(1) = 1, and w_p = 1 on the whole restoring side.
    * For gates with w ≤ 1 (`AtanLog`, `SigLog`, `Gumbel`, `Clip`), f_p Â = min(ρ Â, f Â). `ExpSig` and `ExpAtan` exceed
      ρ just above 1; there f_p = f too, because f_p is chosen by side, so f_p Â is not this minimum.
    * `Pessimistic(Clip(...))` is `Clip(...)`, and `Pessimistic(Identity())` is `Identity()`.
    * A gate with f(1) ≠ 1, such as `Sigmoid`, is continued by its tangent in log space, f(1) ρ^{1/f(1)}, which is ρ
      if f(1) = 1. So w_p stays continuous: it is w(1) = 1/f(1) on the restoring side.

    For Â < 0, f_p has no upper bound and Â f_p no lower bound. `cap` bounds them: f_p = cap and w_p = 0 where Â < 0 and
    ρ > cap, as in dual-clip PPO (arXiv 1912.09729).

    Args:
        gate: the gate f.
        cap: the largest ρ that counts where Â < 0, above 1; None: no bound.

    Raises:
        ValueError: `gate` is not a gate, or `cap` is not a finite number above 1.
    """

    gate: Gate
    cap: float | None = None

    def __post_init__(self) -> None:
        check_gate(self, "gate")
        if self.cap is not None:
            check_number(self, "cap", lambda value: value > 1, "a finite number above 1, or None")

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """log f_p(ρ; Â)."""
        at_one = self.gate.log_gate(torch.zeros_like(log_ratio), advantage)  # 0 for the gates of SSPO
        tangent = at_one + torch.exp(-at_one) * self._capped(log_ratio)
        return torch.where(_restores(log_ratio, advantage), tangent, self.gate.log_gate(log_ratio, advantage))

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """w_p(ρ; Â) = d log f_p / d log ρ."""
        at_one = self.gate.log_gate(torch.zeros_like(log_ratio), advantage)
        slope = torch.exp(-at_one) * (self._capped(log_ratio) == log_ratio)
        return torch.where(_restores(log_ratio, advantage), slope, self.gate.weight(log_ratio, advantage))

    def _capped(self, log_ratio: Tensor) -> Tensor:
        return log_ratio if self.cap is None else log_ratio.clamp(max=math.log(self.cap))


def _restores(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """Marks where a step along Â moves ρ back to 1; uses signs, because a product of small numbers may underflow."""
    return torch.sign(torch.as_tensor(advantage, device=log_ratio.device)) * torch.sign(log_ratio) < 0
