"""The work of sequences, by which microbatches are balanced."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Multiplications of a forward pass: `token` · L + `pair` · L (L + 1) / 2 for a sequence of L tokens."""

    token: int  # with weights, a token
    pair: int  # of attention, for each query and key that it may see

    def of(self, tokens: int, pairs: int) -> int:
        """Returns the work of a number of tokens and a number of (query, key) pairs."""
        return self.token * tokens + self.pair * pairs


QUERIES_AT_ONCE = 256
"""Queries of one call of a CPU's attention with a mask, which computes the pairs that the mask hides, too."""


def masked_pairs(length: int) -> int:
    """Returns the number of masked pairs that are computed where `length` tokens attend to a shared prompt."""
    full, rest = divmod(length, QUERIES_AT_ONCE)
    return full * (causal_pairs(QUERIES_AT_ONCE) - QUERIES_AT_ONCE) + causal_pairs(rest) - rest


def causal_pairs(length: int) -> int:
    """Returns the number of pairs of a query and a key that is not after it."""
    return length * (length + 1) // 2
