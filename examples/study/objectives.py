"""Objectives of the study (docs/study.md) that the package does not have, for `--vary objective=`.

megatron-sspo sweep examples/study/recipes.py:sums --vary "objective={masked: examples/study/objectives.py:MASKED_GRPO}"
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_sspo.objective import (
    AtanLog,
    Gate,
    Identity,
    Pessimistic,
    SequenceObjective,
    arithmetic,
    geometric,
    sspo,
)


@dataclass(frozen=True)
class Mask:
    """f = clip(ρ, 1 − ε_low, 1 + ε_high) whatever the sign of Â; w = 1 inside and 0 outside: a two-sided hard clip.

    Args:
        eps_low: ε_low.
        eps_high: ε_high.
    """

    eps_low: float
    eps_high: float

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return log_ratio.clamp(math.log1p(-self.eps_low), math.log1p(self.eps_high))

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return (self.log_gate(log_ratio, advantage) == log_ratio).to(log_ratio.dtype)


@dataclass(frozen=True)
class BySign:
    """Uses one gate where Â > 0 and another elsewhere."""

    positive: Gate
    negative: Gate

    def log_gate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return self._chosen("log_gate", log_ratio, advantage)

    def weight(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return self._chosen("weight", log_ratio, advantage)

    def _chosen(self, method: str, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        positive, negative = (getattr(gate, method)(log_ratio, advantage) for gate in (self.positive, self.negative))
        return torch.where(torch.as_tensor(advantage, device=log_ratio.device) > 0, positive, negative)


NO_GATE_TOKENS = SequenceObjective(Identity(), arithmetic)
NO_GATE_SEQUENCES = SequenceObjective(Identity(), geometric)

MASKED_GRPO = SequenceObjective(Mask(0.2, 0.2), arithmetic)
MASKED_GMPO = SequenceObjective(Mask(0.2, 0.2), geometric)
MASKED_GSPO = SequenceObjective(Identity(), geometric, Mask(3e-4, 4e-4))

ATANLOG_TOKENS = SequenceObjective(AtanLog(), arithmetic)
ATANLOG_TOKENS_ONE_SIDED = SequenceObjective(Pessimistic(AtanLog()), arithmetic)
ATANLOG_SEQUENCE = SequenceObjective(Identity(), geometric, AtanLog())
ATANLOG_SEQUENCE_ONE_SIDED = SequenceObjective(Identity(), geometric, Pessimistic(AtanLog()))

ONE_SIDED_FOR_POSITIVE = sspo(BySign(Pessimistic(AtanLog()), AtanLog()))
ONE_SIDED_FOR_NEGATIVE = sspo(BySign(AtanLog(), Pessimistic(AtanLog())))
