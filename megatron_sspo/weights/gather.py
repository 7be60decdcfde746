"""Gathers shards of many ranks into whole tensors under Hugging Face names. A collective."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.weights.collectors import MAX_COLLECTORS, Row, assign, row_size, send_rounds, source, split
from megatron_sspo.weights.pieces import Piece, Shard, ShardHolders, hf_shapes, holders_of, pieces_of
from megatron_sspo.weights.table import ParameterMap

NamedTensor = tuple[str, torch.Tensor]

_BUCKET_BYTES = 256 * 1024**2  # the minimum size of a bucket, except for the last one


class Entry(NamedTuple):
    """Name, shape and dtype of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """The size of its content."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Part:
    """Some of the weights, which one rank has put together.

    Attributes:
        rank: that rank, the collector.
        entries: the names, shapes and dtypes of the tensors, in the same order.
        tensors: the weights on that rank, None on the others. They may be views of the model's parameters.
    """

    rank: int
    entries: Sequence[Entry]
    tensors: Sequence[NamedTensor] | None


@dataclass(frozen=True)
class AdapterPlan:
    """The plans for a receiver that adds adapters to the weights itself.

    Attributes:
        base: the plan of the weights without adapters.
        factors: returns the plan of the factors, under PEFT's names. A collective.
        config: the content of PEFT's adapter_config.json.
    """

    base: "GatherPlan"
    factors: Callable[[], "GatherPlan"]
    config: Mapping[str, Any]


class GatherPlan:
    """The plan by which shards become whole tensors: which rank sends which shards. It is made once and used often.

    It is carried out in one of three ways: iteration gives all tensors to every rank, `at_rank_0` to rank 0, and
    `parts` to several ranks, each its own. Every rank walks the same list and takes part in each step, so that ranks
    cannot deadlock. A rank holds its own shards and a few buckets, never the whole model.

    Args:
        rows: the weight table, in the order in which tensors are yielded.
        parameters: logical name -> this rank's shard.
        shards: logical name -> (number, count) of that shard.
        holders: returns the ranks that hold each shard, from this rank's shards.

    Attributes:
        adapter: the adapters that are merged into these weights; None: there are none.
    """

    def __init__(
        self,
        rows: Sequence[ParameterMap],
        parameters: Mapping[str, torch.Tensor],
        shards: Mapping[str, Shard],
        *,
        holders: Callable[[Mapping[str, Shard]], ShardHolders] = holders_of,
    ) -> None:
        self.parameters = parameters
        self.adapter: AdapterPlan | None = None
        self._pieces = pieces_of(rows, holders(shards))

    @property
    def num_bytes(self) -> int:
        """The size of all weights."""
        return sum(row_size(row) * self._dtype(row[0]).itemsize for row in self._pieces)

    # ------------------------------------------------------------------ on every rank

    def __iter__(self) -> Iterator[NamedTensor]:
        """Yields (Hugging Face name, tensor) of every weight, on every rank, in the table's order.

        A collective: every rank has to consume the whole stream. A tensor may be a view of its bucket, and then keeps
        the whole bucket in memory.
        """
        for bucket in split(self._pieces, self._elements(_BUCKET_BYTES)):
            mark_progress()
            yield from self._broadcast(bucket)

    def _broadcast(self, bucket: Sequence[Row]) -> Iterator[NamedTensor]:
        received: dict[tuple[str, Shard], torch.Tensor] = {}
        pieces = sorted((p for row in bucket for p in row), key=lambda p: p.owner)
        for owner, group in groupby(pieces, key=lambda p: p.owner):
            from_owner = list(group)
            flat = self._packed(from_owner) if owner == dist.get_rank() else self._empty(from_owner)
            dist.broadcast(flat, src=owner)
            received |= self._unpacked(flat, from_owner)
        yield from _whole(bucket, received)

    # ------------------------------------------------------------------ on one rank each

    def at_rank_0(self, *, bucket_bytes: int = _BUCKET_BYTES) -> Iterator[NamedTensor]:
        """Yields every weight in the table's order on rank 0, and nothing on the others, which only send.

        A collective: every rank has to consume the whole stream.
        """
        for _, rows in send_rounds({0: self._pieces}, elements=self._elements(bucket_bytes)):
            yield from self._collect(0, rows) or ()

    def collectors(self, *, max_collectors: int = MAX_COLLECTORS) -> list[int]:
        """Returns the ranks that `parts` has, in order."""
        return list(assign(self._pieces, max_collectors=max_collectors))

    def parts(self, *, bucket_bytes: int, max_collectors: int = MAX_COLLECTORS) -> Iterator[Part]:
        """Yields all weights, each on one rank alone, near to where its shards are; every rank gets all parts' entries.

        A collective: every rank has to consume the whole stream. Parts have at least `bucket_bytes`, except for the
        last one of a rank.
        """
        assigned = assign(self._pieces, max_collectors=max_collectors)
        for collector, rows in send_rounds(assigned, elements=self._elements(bucket_bytes)):
            entries = [
                Entry(name, shape, self._dtype(row[0])) for row in rows for name, shape in hf_shapes(row).items()
            ]
            yield Part(collector, entries, self._collect(collector, rows))

    def _collect(self, collector: int, rows: Sequence[Row]) -> list[NamedTensor] | None:
        """Sends this rank's pieces of some rows to their collector, which returns the whole tensors."""
        by_source: dict[int, list[Piece]] = {}
        for piece in (piece for row in rows for piece in row):
            by_source.setdefault(source(piece, collector), []).append(piece)
        mark_progress()
        rank = dist.get_rank()
        if rank != collector:
            if rank in by_source:
                dist.send(self._packed(by_source[rank]), dst=collector)
            return None
        own = {(p.row.name, p.shard): self.parameters[p.row.name].detach() for p in by_source.pop(rank, [])}
        flats = {other: self._empty(pieces) for other, pieces in by_source.items()}
        for work in [dist.irecv(flat, src=other) for other, flat in flats.items()]:
            assert work is not None  # this rank is in the group
            work.wait()
        for other, flat in flats.items():
            own |= self._unpacked(flat, by_source[other])
        return list(_whole(rows, own))

    # ------------------------------------------------------------------ messages

    def _packed(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Returns pieces as one message of the model's dtype, whose elements a wider buffer takes several of."""
        dtype = self._sample.dtype
        return torch.cat([self.parameters[piece.row.name].detach().flatten().view(dtype) for piece in pieces])

    def _empty(self, pieces: Sequence[Piece]) -> torch.Tensor:
        return self._sample.new_empty(sum(self._num_elements(piece) for piece in pieces))

    def _unpacked(self, flat: torch.Tensor, pieces: Sequence[Piece]) -> dict[tuple[str, Shard], torch.Tensor]:
        found = {}
        for piece, part in zip(pieces, flat.split([self._num_elements(piece) for piece in pieces]), strict=True):
            if piece.row.dtype is not None:
                part = part.clone().view(piece.row.dtype)  # of a copy, because a view has to be aligned
            found[piece.row.name, piece.shard] = part.view(piece.row.shape(piece.shard[1]))
        return found

    def _num_elements(self, piece: Piece) -> int:
        return piece.size * self._dtype(piece).itemsize // self._sample.element_size()

    def _dtype(self, piece: Piece) -> torch.dtype:
        return piece.row.dtype or self._sample.dtype

    @cached_property
    def _sample(self) -> torch.Tensor:
        """An empty tensor like the parameters, which have one dtype and device; a buffer may have a wider dtype."""
        return next(iter(self.parameters.values())).detach().new_empty(0)

    def _elements(self, num_bytes: int) -> int:
        return -(-num_bytes // self._sample.element_size())


def _whole(rows: Sequence[Row], pieces: Mapping[tuple[str, Shard], torch.Tensor]) -> Iterator[NamedTensor]:
    for row in rows:
        parts: dict[str, list[torch.Tensor]] = {}
        for _, of_one in groupby(row, key=lambda piece: piece.row.name):
            shards = list(of_one)
            for name, part in shards[0].row.to_hf([pieces[each.row.name, each.shard] for each in shards]).items():
                parts.setdefault(name, []).append(part)
        yield from ((name, torch.cat(found) if len(found) > 1 else found[0]) for name, found in parts.items())
