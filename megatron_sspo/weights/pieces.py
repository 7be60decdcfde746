"""Shards of parameters, and the ranks that hold them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from megatron_sspo.processes import agree
from megatron_sspo.weights.sharding import Shape
from megatron_sspo.weights.table import ParameterMap

SENT_TOGETHER = (".q_a_proj.", ".kv_a_proj_with_mqa.")
"""The projections to latents, which SGLang fuses; it forgets one that comes in another request than the other."""

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
    """Returns the ranks that hold each shard, from this rank's: see `holders_among`. A collective."""
    return holders_among(dict(enumerate(agree.all_gather_objects(dict(shards)))))


def holders_among(held: Mapping[int, Mapping[str, Shard]]) -> ShardHolders:
    """Returns the ranks that hold each shard, of those ranks that are the lowest holder of any shard.

    The other ranks are data-parallel copies of these, and have nothing to send. `held` is by rank and logical name.
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
    """Returns the pieces of each row, in order. Rows of one fused tensor are together, and those of one request."""
    count = {name: shard[1] for name, shard in holders}
    found: list[list[Piece]] = []
    for _, together in groupby(rows, key=lambda row: row.hf):
        pieces = [
            Piece(row, (i, count[row.name]), holders[row.name, (i, count[row.name])])
            for row in together
            for i in range(count[row.name])
        ]
        if found and is_sent_with_next(found[-1][-1].row.hf[0]):
            found[-1] += pieces
        else:
            found.append(pieces)
    return found


def is_sent_with_next(name: str, dtype: torch.dtype | None = None) -> bool:
    """Tells whether a tensor is to be in one request with the next one: see `SENT_TOGETHER`."""
    first, second = SENT_TOGETHER
    return first in name or (second in name and dtype == torch.float8_e4m3fn)  # whose scales follow


def hf_shapes(row: Sequence[Piece]) -> dict[str, Shape]:
    """Returns name -> shape of the Hugging Face tensors that a row's pieces make up."""
    return {name: shape for each in row for name, shape in zip(each.row.hf, each.row.hf_shapes, strict=True)}
