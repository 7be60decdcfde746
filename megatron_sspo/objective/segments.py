"""The sequences that the response tokens of a microbatch belong to, and reductions over them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Segments:
    """The T response tokens of a microbatch, concatenated from S sequences.

    A sequence may be empty: its sum and its mean are 0. Every reduction is deterministic, forward and backward.
    """

    ids: Tensor  # [T] int64: the sequence of each response token, non-decreasing
    lengths: Tensor  # [S] int64: |y_i|, which add up to T

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Tensor, device: torch.device | str | None = None) -> "Segments":
        """Builds the segments from |y_i|, on `device` or by default on the device of `lengths`.

        They are repeated on the host, so a tensor on a GPU causes a synchronization.
        """
        given = torch.as_tensor(lengths, dtype=torch.int64)
        device = given.device if device is None else torch.device(device)
        on_host = given.cpu()
        ids = torch.repeat_interleave(torch.arange(len(on_host), device="cpu"), on_host)
        return cls(ids.to(device), on_host.to(device))

    @property
    def num_sequences(self) -> int:
        """The number of sequences, S."""
        return self.lengths.shape[0]

    @property
    def num_tokens(self) -> int:
        """The number of response tokens, T."""
        return self.ids.shape[0]

    def to(self, device: torch.device | str) -> "Segments":
        return Segments(self.ids.to(device), self.lengths.to(device))

    def with_empty(self) -> "Segments":
        """Returns the segments with one more sequence, without tokens."""
        return Segments(self.ids, torch.nn.functional.pad(self.lengths, (0, 1)))

    def sum(self, values: Tensor) -> Tensor:
        """Σ_t over each sequence: [T] -> [S], in fp32 or wider."""
        # in fp64, because they are added one after the other, and the rounding of fp32 grows with their number
        return self._reduce(values.double(), "sum").to(torch.promote_types(values.dtype, torch.float32))

    def mean(self, values: Tensor) -> Tensor:
        """(1/|y_i|) Σ_t over each sequence, 0 for an empty one: [T] -> [S], in fp32 or wider."""
        return self.sum(values) / self.lengths.clamp(min=1)

    def max(self, values: Tensor) -> Tensor:
        """max_t over each sequence, -inf for an empty one: [T] -> [S], in fp32 or wider."""
        return self._reduce(values, "max")

    def spread(self, values: Tensor) -> Tensor:
        """Repeats each sequence's value for all of its tokens: [S] -> [T]."""
        return values.index_select(0, self.ids)

    def check_tokens(self, name: str, values: Tensor) -> None:
        """Raises ValueError if `values` is not [T] in fp32 or fp64."""
        if values.shape != self.ids.shape:
            raise ValueError(f"{name} has shape {list(values.shape)}, and the segments hold [{self.num_tokens}] tokens")
        if values.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name} is {values.dtype}, and must be float32 or float64: rounding log-probs to bf16 or fp16 adds "
                "more noise to a sequence's mean log ratio than the policy moves in a step"
            )

    def are_per_token(self, name: str, values: Tensor) -> bool:
        """Returns whether `values` are [T] and not [S]. If T = S they are [S]: `with_empty` makes S another number.

        Raises ValueError if they are neither.
        """
        if values.shape == self.ids.shape != self.lengths.shape:
            return True
        if values.shape != self.lengths.shape:
            raise ValueError(
                f"{name} has shape {list(values.shape)}, and the segments hold [{self.num_sequences}] sequences of "
                f"[{self.num_tokens}] tokens"
            )
        return False

    def _reduce(self, values: Tensor, operation: str) -> Tensor:
        if values.shape != self.ids.shape:
            raise ValueError(
                f"values have shape {list(values.shape)}, and the segments hold [{self.num_tokens}] tokens"
            )
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        # `unsafe` skips a check of the lengths that synchronizes with the device and fails for S = 0.
        return torch.segment_reduce(values, operation, lengths=self.lengths, unsafe=True)
