"""Averages: the factor of each sequence in the sum of a batch, and the one number that the sum is divided by."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from megatron_sspo.objective.checks import check_number, describe_value
from megatron_sspo.objective.segments import Segments


class Average(Protocol):
    """J = (1/N) Σ_i a_i w_i Â_i. N is a number of the whole batch, known before it is split."""

    def share(self, segments: Segments) -> Tensor:
        """a_i, what each sequence counts for: [S]."""
        ...

    def divisor(self, num_sequences: int, num_tokens: int) -> float:
        """N, of the numbers of sequences and of response tokens of the whole batch."""
        ...


@dataclass(frozen=True)
class OverSequences:
    """a_i = 1, N = S: the mean over sequences, of GRPO (arXiv 2402.03300), GSPO and SSPO."""

    def share(self, segments: Segments) -> Tensor:
        return torch.ones_like(segments.lengths)

    def divisor(self, num_sequences: int, num_tokens: int) -> float:
        return float(num_sequences)


@dataclass(frozen=True)
class OverTokens:
    """a_i = |y_i|, N = Σ_j |y_j|: the mean over the response tokens of the batch, of DAPO (arXiv 2503.14476)."""

    def share(self, segments: Segments) -> Tensor:
        return segments.lengths

    def divisor(self, num_sequences: int, num_tokens: int) -> float:
        return float(max(num_tokens, 1))


@dataclass(frozen=True)
class OverLength:
    """a_i = |y_i|, N = S · L with a constant length L: sums over tokens, of Dr. GRPO (arXiv 2503.20783).

    Raises:
        ValueError: L is not a finite number above 0.
    """

    length: float  # L

    def __post_init__(self) -> None:
        check_number(self, "length", lambda value: value > 0, "a finite number above 0")

    def share(self, segments: Segments) -> Tensor:
        return segments.lengths

    def divisor(self, num_sequences: int, num_tokens: int) -> float:
        return num_sequences * self.length


def shares_of(average: Average, segments: Segments) -> Tensor:
    """Returns a_i of each sequence: [S]. Raises ValueError if the average returns something else."""
    share = average.share(segments)
    if not isinstance(share, Tensor) or share.shape != segments.lengths.shape:
        found = f"shape {list(share.shape)}" if isinstance(share, Tensor) else describe_value(share)
        raise ValueError(
            f"{type(average).__name__}.share returned {found}, and must return one number for each of the "
            f"{segments.num_sequences} sequences, such as segments.lengths"
        )
    return share


def average_of(objective: object) -> Average:
    """Returns the `average` of an objective; an objective without that attribute is a mean over sequences."""
    return getattr(objective, "average", OverSequences())


def counts_tokens(objective: object) -> bool:
    """Returns whether the divisor of an objective's average depends on the number of tokens."""
    average = average_of(objective)
    return average.divisor(1, 1) != average.divisor(1, 2)
