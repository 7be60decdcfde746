"""The signature of an objective, and its result: a sum, which the caller divides once by a number of the batch."""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from megatron_sspo.objective.segments import Segments


@dataclass(frozen=True, eq=False)
class Sums:
    """The loss of a microbatch, and detached values for means and quantiles."""

    loss: Tensor  # scalar: minus the sum over sequences; divide by the divisor of the objective's average
    tokens: dict[str, Tensor] = field(default_factory=dict)  # each [T]; "token_weight" is logged
    sequences: dict[str, Tensor] = field(default_factory=dict)  # each [S]; "sequence_weight" is logged


class Objective(Protocol):
    """A function: log-probs [T], old log-probs [T], advantages [S] or [T], segments -> `Sums`.

    It may have two attributes. `average` says what the sum is divided by: `OverSequences()` if it has none. `needs` is
    a tuple of names out of `rollout_log_probs`, `reference_log_probs`, `entropy` and `old_entropy`: it is given these,
    [T] each, as keywords of the same names. What costs a pass or memory is computed only if it is named.
    """

    def __call__(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, segments: Segments) -> Sums: ...
