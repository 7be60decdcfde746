"""Load balancing: assigns sequences to microbatches and data-parallel ranks."""

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from megatron_sspo.batching.context import round_up
from megatron_sspo.errors import UserError

_ONE_BY_ONE = 2**16  # sequences placed in attempts that failed, after which numbers of microbatches are skipped
_Bins = list[list[int]]


def pack(
    lengths: Sequence[int], *, num_ranks: int, max_tokens: int, multiple_of: int = 1, work: Sequence[int] | None = None
) -> list[list[list[int]]]:
    """Distributes sequences over ranks and microbatches.

    The number of microbatches is the smallest one in which everything fits; after many failed attempts numbers are
    skipped, and a smaller one that fits may be among them. The sequence with the most work goes first, always into the
    microbatch with the least work that has room for its tokens. If they do not fit so, the longest goes first, into the
    emptiest microbatch (LPT). Microbatches are then assigned to ranks in order of their work: with expert parallelism
    ranks run in lockstep, so they should process similar microbatches at the same time.

    Args:
        lengths: number of tokens of each sequence, prompt and response.
        num_ranks: number of data-parallel ranks.
        multiple_of: divisor of the number of microbatches per rank (the interleaved schedule needs one).
        work: what each sequence costs, in any unit; by default its tokens.

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
    costs = lengths if work is None else work
    num_microbatches = max(1, -(-_fewest_bins(lengths, max_tokens) // num_ranks))
    num_microbatches, bins = _smallest(
        lambda number: _pack(lengths, costs, number * num_ranks, max_tokens),
        first=round_up(num_microbatches, multiple_of),
        step=multiple_of,
        one_by_one=_ONE_BY_ONE // max(1, len(lengths)),
    )
    bins.sort(key=lambda members: (-sum(costs[i] for i in members), members))
    return [[bins[row * num_ranks + rank] for row in range(num_microbatches)] for rank in range(num_ranks)]


def _smallest(attempt: Callable[[int], _Bins | None], *, first: int, step: int, one_by_one: int) -> tuple[int, _Bins]:
    """Returns the smallest of the numbers first, first + step, ... whose attempt gives bins, and these bins.

    After `one_by_one` attempts that failed, the steps double, and the numbers between the last two are bisected.
    """
    fails, fits, stride = first - step, first, step
    while (bins := attempt(fits)) is None:
        if fits - first >= one_by_one * step:
            stride *= 2
        fails, fits = fits, fits + stride
    while fits - fails > step:
        middle = fails + (fits - fails) // (2 * step) * step
        if (found := attempt(middle)) is None:
            fails = middle
        else:
            fits, bins = middle, found
    return fits, bins


def _fewest_bins(lengths: Sequence[int], max_tokens: int) -> int:
    """Returns a number of bins below which no packing exists.

    For a size t of at most half a bin: a sequence longer than max_tokens - t shares its bin with none of t or more. The
    others above one half have a bin each, and their room is all that those from t to one half find in these bins
    (Martello and Toth's second bound). A bin has at most k of the sequences that are longer than 1/(k+1) of it. The
    bound spares attempts that would fail, many where sequences are long.
    """
    sizes = np.sort(np.asarray(lengths, np.int64))
    sums = np.concatenate([[0], sizes.cumsum()])
    half = int(sizes.searchsorted(max_tokens // 2, "right"))
    t = np.concatenate([[0], sizes[:half]])
    alone = sizes.searchsorted(max_tokens - t, "right")
    room = (alone - half) * max_tokens - (sums[alone] - sums[half])
    small = sums[half] - sums[sizes.searchsorted(t, "left")]
    more = np.maximum(0, -((room - small) // max_tokens))
    k = np.arange(2, 17)
    longer = len(sizes) - sizes.searchsorted(max_tokens // (k + 1), "right")
    return int(max((len(sizes) - half + more).max(), (-(-longer // k)).max()))


def _pack(lengths: Sequence[int], costs: Sequence[int], num_bins: int, max_tokens: int) -> list[list[int]] | None:
    bins = _fill_by_work(lengths, costs, num_bins, max_tokens)
    return fill(lengths, num_bins, max_tokens) if bins is None else bins


def _fill_by_work(
    lengths: Sequence[int], costs: Sequence[int], num_bins: int, max_tokens: int
) -> list[list[int]] | None:
    """Distributes sequences over bins, the most work first into the bin with the least; None if they do not fit so."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    work, room = np.zeros(num_bins, np.int64), np.full(num_bins, max_tokens, np.int64)
    full = np.iinfo(np.int64).max
    for index in sorted(range(len(lengths)), key=lambda i: (-costs[i], i)):
        number = int(np.where(room >= lengths[index], work, full).argmin())
        if room[number] < lengths[index]:
            return None
        bins[number].append(index)
        work[number] += costs[index]
        room[number] -= lengths[index]
    return [sorted(members) for members in bins]


def fill(lengths: Sequence[int], num_bins: int, max_tokens: int) -> list[list[int]] | None:
    """Distributes sequences over bins, the longest first into the emptiest bin; None if they do not fit so."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    emptiest = [(0, number) for number in range(num_bins)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, number = heapq.heappop(emptiest)
        if tokens + lengths[index] > max_tokens:
            return None
        bins[number].append(index)
        heapq.heappush(emptiest, (tokens + lengths[index], number))
    return [sorted(members) for members in bins]
