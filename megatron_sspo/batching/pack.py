"""Load balancing: assigns sequences to microbatches and data-parallel ranks."""

import heapq
from collections.abc import Sequence

from megatron_sspo.errors import UserError


def pack(lengths: Sequence[int], *, num_ranks: int, max_tokens: int, multiple_of: int = 1) -> list[list[list[int]]]:
    """Distributes sequences over ranks and microbatches.

    The longest sequence goes first, always into the emptiest microbatch (LPT). The number of microbatches is the
    smallest one in which everything fits. Microbatches are then assigned to ranks in order of size: with expert
    parallelism ranks run in lockstep, so they should process microbatches of similar size at the same time.

    Args:
        lengths: number of tokens of each sequence, prompt and response.
        num_ranks: number of data-parallel ranks.
        max_tokens: largest number of tokens in a microbatch.
        multiple_of: divisor of the number of microbatches per rank (the interleaved schedule needs one).

    Returns:
        `[rank][microbatch] -> indices of sequences`, with the same number of microbatches on every rank; some may be
        empty. The same input gives the same output on every process.

    Raises:
        UserError: a sequence is longer than `max_tokens`.
    """
    for index, length in enumerate(lengths):
        if length > max_tokens:
            raise UserError(
                f"sequence {index} has {length} tokens, more than tokens_per_microbatch={max_tokens}: raise the latter"
            )
    num_microbatches = max(1, -(-sum(lengths) // (max_tokens * num_ranks)))
    num_microbatches = -(-num_microbatches // multiple_of) * multiple_of
    while (bins := _fill(lengths, num_microbatches * num_ranks, max_tokens)) is None:
        num_microbatches += multiple_of
    bins.sort(key=lambda members: (-sum(lengths[i] for i in members), members))
    return [[bins[row * num_ranks + rank] for row in range(num_microbatches)] for rank in range(num_ranks)]


def _fill(lengths: Sequence[int], num_bins: int, max_tokens: int) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    emptiest = [(0, number) for number in range(num_bins)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, number = heapq.heappop(emptiest)
        if tokens + lengths[index] > max_tokens:
            return None
        bins[number].append(index)
        heapq.heappush(emptiest, (tokens + lengths[index], number))
    return [sorted(members) for members in bins]
