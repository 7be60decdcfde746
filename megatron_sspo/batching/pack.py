"""Balance: which sequence goes into which microbatch of which data-parallel rank."""

import heapq
from collections.abc import Sequence

from megatron_sspo.errors import UserError


def pack(lengths: Sequence[int], *, num_ranks: int, max_tokens: int, multiple_of: int = 1) -> list[list[list[int]]]:
    """Shares out sequences over ranks and microbatches.

    The longest sequence first, always into the emptiest microbatch (LPT); the smallest number of microbatches in which
    everything fits. Microbatches are then dealt out in order of size, so that the ranks, which run in lockstep where
    experts are shared between them, hold microbatches of like size at the same time.

    Args:
        lengths: tokens of each sequence, prompt and response.
        num_ranks: data-parallel ranks.
        max_tokens: no microbatch holds more.
        multiple_of: what the number of microbatches of a rank has to divide by (the interleaved schedule's wish).

    Returns:
        `[rank][microbatch] -> indices of sequences`, with as many microbatches on every rank; some may be empty.
        The same input gives the same output on every process.

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
