"""Shards of parameters, and the ranks that hold them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from megatron_sspo.processes import agree
from megatron_sspo.weights.table import ParameterMap

Shard = tuple[int, int]
"""(number, count): the number of the shard that a rank holds, and how many shards the parameter has."""

ShardHolders = dict[tuple[str, Shard], tuple[int, ...]]
"""(logical name, shard) -> the ranks that may send it, the lowest rank that holds it first."""


@dataclass(frozen=True)
class Piece:
    """One shard of one row, and the ranks that may send it, the lowest rank that holds it first."""

    row: ParameterMap
    shard: Shard
    holders: tuple[int, ...]

    @property
    def owner(self) -> int:
        """The lowest rank that holds the shard."""
        return self.holders[0]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.row.shape(self.shard[1]))


def holders_of(shards: Mapping[str, Shard]) -> ShardHolders:
    """Returns the ranks that hold each shard: see `holders_among`. A collective.

    Args:
        shards: logical name -> (number, count) of the shard that this rank holds.
    """
    return holders_among(dict(enumerate(agree.all_gather_objects(dict(shards)))))


def holders_among(held: Mapping[int, Mapping[str, Shard]]) -> ShardHolders:
    """Returns the ranks that hold each shard, of those ranks that are the lowest holder of any shard.

    The other ranks are data-parallel copies of these, and have nothing to send.

    Args:
        held: rank -> logical name -> (number, count) of the shard that it holds.
    """
    lowest: dict[tuple[str, Shard], int] = {}
    for rank in sorted(held):
        for key in held[rank].items():
            lowest.setdefault(key, rank)
    holders: dict[tuple[str, Shard], list[int]] = {key: [] for key in lowest}
    for rank in sorted(set(lowest.values())):
        for key in held[rank].items():
            holders[key].append(rank)
    return {key: tuple(ranks) for key, ranks in holders.items()}


def pieces_of(rows: Sequence[ParameterMap], holders: ShardHolders) -> list[list[Piece]]:
    """Returns the pieces of each row, in order; rows of one fused tensor are together."""
    count = {name: shard[1] for name, shard in holders}
    return [
        [
            Piece(row, (i, count[row.name]), holders[row.name, (i, count[row.name])])
            for row in together
            for i in range(count[row.name])
        ]
        for _, together in groupby(rows, key=lambda row: row.hf)
    ]
