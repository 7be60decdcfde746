"""The signature of an objective, and its result: sums over sequences, which the caller divides once."""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from megatron_sspo.objective.segments import Segments


@dataclass(frozen=True, eq=False)
class Sums:
    """The loss of a microbatch, and detached values for means and quantiles."""

    loss: Tensor  # scalar: minus the sum over sequences; divide by the global number of sequences
    tokens: dict[str, Tensor] = field(default_factory=dict)  # each [T]
    sequences: dict[str, Tensor] = field(default_factory=dict)  # each [S]


class Objective(Protocol):
    """A function: log-probs [T], old log-probs [T], advantages [S], segments -> `Sums`."""

    def __call__(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, segments: Segments) -> Sums: ...
