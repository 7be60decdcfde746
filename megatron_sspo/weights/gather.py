"""Gathers shards of many ranks into whole tensors under Hugging Face names. A collective."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.distributed as dist

from megatron_sspo.errors import UserError
from megatron_sspo.processes import agree
from megatron_sspo.weights.table import ParameterMap

Shard = tuple[int, int]
"""(number, count): the number of the shard that a rank holds, and how many shards the parameter has."""


@dataclass(frozen=True)
class _Piece:
    """One shard of one row, and the rank that sends it."""

    row: ParameterMap
    shard: Shard
    owner: int


class Gather:
    """A plan of which rank sends which shards, made once. Each call is one pass over all weights.

    Every rank walks the same list of buckets and takes part in each broadcast, so that ranks cannot deadlock. A rank
    holds its own shards and one bucket, never the whole model.

    Args:
        rows: the weight table, in the order in which tensors are yielded.
        parameters: logical name -> this rank's shard.
        shards: logical name -> (number, count) of that shard.
        bucket_bytes: the minimum size of a bucket, except for the last one.

    Raises:
        UserError: a parameter has no row, or a shard of a row is on no rank.
    """

    def __init__(
        self,
        rows: Sequence[ParameterMap],
        parameters: Mapping[str, torch.Tensor],
        shards: Mapping[str, Shard],
        *,
        bucket_bytes: int = 256 * 1024**2,
    ) -> None:
        self.parameters = parameters
        owners = _owners(shards)
        rows_by_name = {row.name: row for row in rows}
        unknown = sorted({name for name, _ in owners} - rows_by_name.keys())
        if unknown:
            raise UserError(f"{len(unknown)} parameters of the model have no row in the weight table: {unknown[:10]}")
        count = {name: shard[1] for name, shard in owners}
        pieces: list[list[_Piece]] = []
        for row in rows:
            present = [(i, count.get(row.name, 0)) for i in range(count.get(row.name, 1))]
            missing = [shard for shard in present if (row.name, shard) not in owners]
            if missing:
                raise UserError(f"no rank holds part {missing[0][0]} of {row.name}, which the weight table lists")
            pieces.append([_Piece(row, shard, owners[row.name, shard]) for shard in present])
        self.buckets = _buckets(pieces, next(iter(parameters.values())).element_size(), bucket_bytes)

    def __call__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (Hugging Face name, tensor) of every weight, on every rank, in the table's order.

        A collective: every rank has to consume the whole stream. A tensor may be a view of its bucket, and then keeps
        the whole bucket in memory.
        """
        sample = next(iter(self.parameters.values()))
        for bucket in self.buckets:
            yield from self._bucket(bucket, sample)

    def _bucket(self, bucket: list[list[_Piece]], sample: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        received: dict[tuple[str, Shard], torch.Tensor] = {}
        pieces = sorted((p for row in bucket for p in row), key=lambda p: p.owner)
        for owner, group in groupby(pieces, key=lambda p: p.owner):
            from_owner = list(group)
            sizes = [_numel(piece) for piece in from_owner]
            if owner == dist.get_rank():
                flat = torch.cat([self.parameters[piece.row.name].detach().flatten() for piece in from_owner])
            else:
                flat = torch.empty(sum(sizes), dtype=sample.dtype, device=sample.device)
            dist.broadcast(flat, src=owner)
            for piece, part in zip(from_owner, flat.split(sizes), strict=True):
                received[piece.row.name, piece.shard] = part.view(piece.row.shape(piece.shard[1]))
        for row_pieces in bucket:
            row = row_pieces[0].row
            yield from row.to_hf([received[row.name, piece.shard] for piece in row_pieces]).items()


def _owners(shards: Mapping[str, Shard]) -> dict[tuple[str, Shard], int]:
    """Returns the lowest rank that holds each shard. A collective."""
    owners: dict[tuple[str, Shard], int] = {}
    for rank, held in enumerate(agree.all_gather_objects(dict(shards))):
        for name, shard in held.items():
            owners.setdefault((name, shard), rank)
    return owners


def _numel(piece: _Piece) -> int:
    return math.prod(piece.row.shape(piece.shard[1]))


def _buckets(pieces: list[list[_Piece]], element_size: int, bucket_bytes: int) -> list[list[list[_Piece]]]:
    buckets: list[list[list[_Piece]]] = [[]]
    filled = 0
    for row_pieces in pieces:
        if filled >= bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(row_pieces)
        filled += sum(_numel(piece) for piece in row_pieces) * element_size
    return buckets
