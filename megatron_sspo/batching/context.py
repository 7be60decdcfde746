"""The zigzag split of packed sequences for context parallelism, and the permutation that undoes it.

Every sequence is padded to a multiple of 2·C positions and cut into 2·C equal parts; rank r of C holds parts r and
2·C−1−r. Under a causal mask every rank then has the same amount of attention to compute.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch


def num_parts(num_ranks: int) -> int:
    """Returns the number of equal parts into which the split cuts a sequence: 2·C, or 1 for one rank."""
    return 2 * num_ranks if num_ranks > 1 else 1


def parts_of(rank: int, num_ranks: int) -> tuple[int, ...]:
    """Returns which of the `num_parts` parts of each sequence a rank holds."""
    return (rank, 2 * num_ranks - 1 - rank) if num_ranks > 1 else (0,)


def round_up(length: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` that is not below `length`."""
    return -(-length // multiple) * multiple


def zigzag(borders: Sequence[int], rank: int, num_ranks: int) -> torch.Tensor:
    """Returns the positions of a packed row that a rank holds, in the rank's order.

    Args:
        borders: positions where sequences begin and end, each a multiple of 2·`num_ranks`.

    Returns:
        [T / num_ranks] int64; `arange(T)` for one rank.
    """
    if num_ranks == 1:
        return torch.arange(borders[-1])
    parts = []
    for start, stop in pairwise(borders):
        size = (stop - start) // num_parts(num_ranks)
        for part in parts_of(rank, num_ranks):
            parts.append(torch.arange(start + part * size, start + (part + 1) * size))
    return torch.cat(parts)


def gathered_places(borders: Sequence[int], num_ranks: int) -> torch.Tensor:
    """Returns where the tokens of a packed row are among those of all ranks, gathered rank by rank.

    The result is [T] int64, and `gathered[places]` is in row order.
    """
    return torch.cat([zigzag(borders, rank, num_ranks) for rank in range(num_ranks)]).argsort()


def gather_order(is_response: torch.Tensor, borders: Sequence[int], num_ranks: int) -> tuple[list[int], torch.Tensor]:
    """Returns the permutation that puts values of response positions, gathered rank by rank, into row order.

    Args:
        is_response: [T] bool over the whole row.

    Returns:
        The number of response positions of each rank, and `order` [R] int64: `gathered[order]` is in row order.
    """
    held = [zigzag(borders, rank, num_ranks) for rank in range(num_ranks)]
    responses = [positions[is_response[positions]] for positions in held]
    return [len(positions) for positions in responses], torch.cat(responses).argsort()
