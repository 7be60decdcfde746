"""The weight table, which is read in both directions.

A row (`ParameterMap`) says which Hugging Face tensors make up one Megatron parameter, and how parallel ranks shard it.
Everything follows from its `blocks`: a shard is a concatenation of ranges of the Hugging Face tensors. `to_megatron`
makes a shard of these ranges, and `to_hf` reverses it. Rows do not depend on process groups: a shard is a number.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from megatron_sspo.errors import UserError

Group = Literal["none", "tensor", "expert_tensor"]
Shape = tuple[int, ...]
Read = Callable[[str, int, int, int], Tensor]  # (Hugging Face name, dim, start, stop) -> that slice


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [start, stop) of the `source`-th Hugging Face tensor; with `source` None, that many rows of zeros."""

    source: int | None
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Sharding:
    """A way to assemble a parameter from its sources and to shard it, along `dim`; here every shard is the source."""

    dim: int = field(default=0, kw_only=True)

    def num_pieces(self, sizes: Sequence[int], num_shards: int) -> tuple[int, str]:
        """Returns the number that the number of shards must divide, and the configuration field that it comes from."""
        return 0, ""  # every number divides 0

    def blocks(self, sizes: Sequence[int], shard: int, num_shards: int) -> tuple[Block, ...]:
        """Returns the ranges that make up a shard. `sizes` are the sources' sizes along `dim`."""
        return (Block(0, 0, sizes[0]),)

    def shape(self, joined: Shape) -> Shape:
        """Returns the shape of a shard, from that of its ranges one after the other."""
        return joined

    def to_megatron(self, joined: Tensor) -> Tensor:
        """Returns a shard, from its ranges one after the other."""
        return joined

    def to_hf(self, shard: Tensor) -> Tensor:
        """Returns the ranges of a shard, one after the other."""
        return shard


@dataclass(frozen=True)
class EvenSplit(Sharding):
    """Shard i is [piece i of source 0; piece i of source 1; ...], with one equal piece of each source per shard.

    With one source this is Megatron's column (dim 0) or row (dim 1) parallel weight; with the sources gate and up it is
    its gated `linear_fc1`.
    """

    size_field: str

    def num_pieces(self, sizes: Sequence[int], num_shards: int) -> tuple[int, str]:
        return sizes[0], self.size_field

    def blocks(self, sizes: Sequence[int], shard: int, num_shards: int) -> tuple[Block, ...]:
        return _pieces(sizes, shard, num_shards)


@dataclass(frozen=True)
class GroupedQKV(Sharding):
    """A shard is a range of groups; group g is [piece g of source 0; piece g of source 1; ...], of `num_groups` pieces.

    With the sources q, k, v and one group per key-value head this is Megatron's `linear_qkv`: the query heads of a
    group, then its key, then its value. With more shards than groups, a group spans several shards, and Megatron puts
    it together again.
    """

    num_groups: int

    def num_pieces(self, sizes: Sequence[int], num_shards: int) -> tuple[int, str]:
        num_heads = sizes[0] * self.num_groups // sizes[1]
        if num_shards % self.num_groups:
            return self.num_groups, "num_key_value_heads"
        if num_heads % num_shards:
            return num_heads, "num_attention_heads"
        return sum(sizes), "the number of query, key and value rows"

    def blocks(self, sizes: Sequence[int], shard: int, num_shards: int) -> tuple[Block, ...]:
        whole = [block for group in range(self.num_groups) for block in _pieces(sizes, group, self.num_groups)]
        size = sum(sizes) // num_shards
        return tuple(_slice(whole, shard * size, (shard + 1) * size))


@dataclass(frozen=True)
class GatedQKV(GroupedQKV):
    """`GroupedQKV` whose source 0 has each query head followed by its gate; a group has its queries, then its gates."""

    head_dim: int

    def num_pieces(self, sizes: Sequence[int], num_shards: int) -> tuple[int, str]:
        return super().num_pieces([sizes[0] // 2, *sizes[1:]], num_shards)

    def blocks(self, sizes: Sequence[int], shard: int, num_shards: int) -> tuple[Block, ...]:
        whole, step = [], 2 * self.head_dim
        for group in range(self.num_groups):
            q, k, v = _pieces(sizes, group, self.num_groups)
            for offset in (0, self.head_dim):
                starts = range(q.start + offset, q.stop, step)
                whole += [Block(0, start, start + self.head_dim) for start in starts]
            whole += [k, v]
        size = sum(sizes) // num_shards
        return tuple(_slice(whole, shard * size, (shard + 1) * size))


@dataclass(frozen=True)
class Interleaved(Sharding):
    """A shard is a range of heads; head h has piece h of each part of source 0, then of source 1, ...

    `parts` has the sizes of each source's parts, one after the other.
    """

    parts: tuple[tuple[int, ...], ...]
    num_heads: int
    size_field: str

    def num_pieces(self, sizes: Sequence[int], num_shards: int) -> tuple[int, str]:
        return self.num_heads, self.size_field

    def blocks(self, sizes: Sequence[int], shard: int, num_shards: int) -> tuple[Block, ...]:
        here = self.num_heads // num_shards
        return tuple(
            Block(source, start + block.start, start + block.stop)
            for head in range(shard * here, (shard + 1) * here)
            for source, parts in enumerate(self.parts)
            for start, block in zip([0, *accumulate(parts)], _pieces(parts, head, self.num_heads), strict=False)
        )


@dataclass(frozen=True)
class FusedExpert(Sharding):
    """Expert `expert` of a tensor [experts, in, out] that holds all of a layer, or of their biases [experts, out].

    Megatron's [out, in] is its transpose. If it is gated, the tensor's outputs 0, 2, ... are the gate and 1, 3, ... up.
    """

    expert: int
    is_gated: bool

    def num_pieces(self, sizes: Sequence[int], num_shards: int) -> tuple[int, str]:
        return 1, "the number of parts of an expert with biases,"

    def blocks(self, sizes: Sequence[int], shard: int, num_shards: int) -> tuple[Block, ...]:
        return (Block(0, self.expert, self.expert + 1),)

    def shape(self, joined: Shape) -> Shape:
        return joined[:0:-1]

    def to_megatron(self, joined: Tensor) -> Tensor:
        outputs = joined[0].movedim(-1, 0)
        return torch.cat([outputs[0::2], outputs[1::2]]) if self.is_gated else outputs.contiguous()

    def to_hf(self, shard: Tensor) -> Tensor:
        outputs = torch.stack(shard.chunk(2), dim=1).flatten(0, 1) if self.is_gated else shard
        return outputs.movedim(0, -1)[None].contiguous()


@dataclass(frozen=True)
class PaddedVocab(Sharding):
    """Equal shards along dim 0, after zero rows were appended up to `padded_size`; `to_hf` drops the appended rows."""

    padded_size: int

    def num_pieces(self, sizes: Sequence[int], num_shards: int) -> tuple[int, str]:
        return self.padded_size, "the padded vocabulary size"

    def blocks(self, sizes: Sequence[int], shard: int, num_shards: int) -> tuple[Block, ...]:
        per_shard = self.padded_size // num_shards
        start, stop = min(shard * per_shard, sizes[0]), min((shard + 1) * per_shard, sizes[0])
        blocks = (Block(0, start, stop), Block(None, 0, per_shard - (stop - start)))
        return tuple(block for block in blocks if block.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterMap:
    """One Megatron parameter.

    `name` does not depend on the layout: layers and experts are numbered over the whole model, and the modules have the
    names of Megatron's local layer spec, with `experts.{e}` for `experts.local_experts.{e}`.
    """

    name: str
    hf: tuple[str, ...]
    hf_shapes: tuple[Shape, ...]
    sharding: Sharding
    group: Group = "none"  # the parallel size that shards it; "none": every rank holds all of it
    copies: tuple[str, ...] = ()  # further names of the first source in a folder, such as a tied `lm_head.weight`
    dtype: torch.dtype | None = None  # of a buffer that has it whatever the model's dtype is; None: the model's

    @property
    def dim(self) -> int:
        return self.sharding.dim

    @property
    def is_fused(self) -> bool:
        """Tells whether the source has parameters of further rows, which are next to this one in the table."""
        return isinstance(self.sharding, FusedExpert)

    def blocks(self, shard: int, num_shards: int) -> tuple[Block, ...]:
        """Returns the ranges of Hugging Face tensors that, concatenated in this order along `dim`, make up a shard.

        Raises UserError if the parameter cannot be cut into `num_shards` equal shards.
        """
        sizes = [shape[self.dim] for shape in self.hf_shapes]
        num_pieces, what = self.sharding.num_pieces(sizes, num_shards)
        if num_pieces % num_shards:
            kind = f"{self.group.replace('_', ' ')} parallel"
            others = f" or another divisor of {num_pieces}" if num_pieces > 1 else ""
            raise UserError(
                f"{what} {num_pieces} cannot be cut into {num_shards} {kind.replace(' ', '-')} shards ({self.name}); "
                f"use {kind} size 1{others}"
            )
        return self.sharding.blocks(sizes, shard, num_shards)

    def rows(self, read: Read, start: int, stop: int) -> Tensor:
        """Returns rows [start, stop) of the whole parameter, from slices of the Hugging Face tensors."""
        if self.is_fused:
            return self.to_megatron(read, 0, 1)[start:stop]
        blocks = _slice(self.row_blocks(), start, stop)
        return _join([read(self.hf[block.source or 0], 0, block.start, block.stop) for block in blocks], 0)

    def row_blocks(self) -> tuple[Block, ...]:
        """Returns the ranges of rows that, one after the other, are the rows of the whole parameter."""
        return (Block(0, 0, self.hf_shapes[0][0]),) if self.dim else self.blocks(0, 1)

    def shape(self, num_shards: int) -> Shape:
        """Returns the shape of a shard, which is the same for all shards."""
        size = sum(block.size for block in self.blocks(0, num_shards))
        return self.sharding.shape((*self.hf_shapes[0][: self.dim], size, *self.hf_shapes[0][self.dim + 1 :]))

    def to_megatron(self, read: Read, shard: int, num_shards: int) -> Tensor:
        """Returns the shard, of shape `shape(num_shards)`, from slices of the Hugging Face tensors.

        It may be a view of what `read` returned.
        """
        parts = []
        for block in self.blocks(shard, num_shards):
            if block.source is None:
                # An empty slice has the dtype, the device and the other dimensions.
                like = read(self.hf[0], self.dim, 0, 0)
                parts.append(like.new_zeros([*like.shape[: self.dim], block.size, *like.shape[self.dim + 1 :]]))
            else:
                parts.append(read(self.hf[block.source], self.dim, block.start, block.stop))
        return self.sharding.to_megatron(_join(parts, self.dim))

    def to_hf(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns the Hugging Face tensors, by name, from all shards in order; a row with group "none" needs only one.

        They may be views of the shards. Of a source that is fused it is the row's own part.
        """
        shards = shards[:1] if self.group == "none" else shards
        parts: list[list[tuple[int, Tensor]]] = [[] for _ in self.hf]
        for index, shard in enumerate(shards):
            offset, shard = 0, self.sharding.to_hf(shard)
            for block in self.blocks(index, len(shards)):
                if block.source is not None:
                    parts[block.source].append((block.start, shard.narrow(self.dim, offset, block.size)))
                offset += block.size
        in_order = [[tensor for _, tensor in sorted(found, key=itemgetter(0))] for found in parts]
        return {name: _join(found, self.dim) for name, found in zip(self.hf, in_order, strict=True)}


def replicated(name: str, hf: str, shape: Shape) -> ParameterMap:
    """A parameter that every rank holds whole: a norm, a router."""
    return ParameterMap(name=name, hf=(hf,), hf_shapes=(shape,), sharding=Sharding())


def row_parallel(name: str, hf: str, shape: Shape, size_field: str, group: Group = "tensor") -> ParameterMap:
    """Megatron's RowParallelLinear: the input dimension, which `size_field` of config.json sets, is cut."""
    return ParameterMap(name=name, hf=(hf,), hf_shapes=(shape,), sharding=EvenSplit(size_field, dim=1), group=group)


def column_parallel(name: str, hf: str, shape: Shape, size_field: str) -> ParameterMap:
    """Megatron's ColumnParallelLinear, or another parameter whose first dimension, which `size_field` sets, is cut."""
    return ParameterMap(name=name, hf=(hf,), hf_shapes=(shape,), sharding=EvenSplit(size_field), group="tensor")


def qkv(
    name: str,
    hf: tuple[str, str, str],
    *,
    num_heads: int,
    num_groups: int,
    head_dim: int,
    inputs: Shape,
    output_gate: bool = False,
) -> ParameterMap:
    """Megatron's linear_qkv from q [num_heads·head_dim, *inputs], k and v [num_groups·head_dim, *inputs].

    `inputs` is (hidden_size,) for the weight and () for the bias. With an output gate, q has twice as many rows.
    """
    rows = (num_heads * (1 + output_gate), num_groups, num_groups)
    shapes = tuple((heads * head_dim, *inputs) for heads in rows)
    sharding = GatedQKV(num_groups, head_dim) if output_gate else GroupedQKV(num_groups)
    return ParameterMap(name=name, hf=hf, hf_shapes=shapes, sharding=sharding, group="tensor")


def gate_up(name: str, hf: tuple[str, str], shape: Shape, size_field: str, group: Group = "tensor") -> ParameterMap:
    """Megatron's gated linear_fc1: shard i is [gate shard i; up shard i]. `shape` is the shape of each of the two."""
    return ParameterMap(name=name, hf=hf, hf_shapes=(shape, shape), sharding=EvenSplit(size_field), group=group)


def vocab(name: str, hf: str, shape: Shape, padded_size: int, copies: tuple[str, ...] = ()) -> ParameterMap:
    """An embedding or output layer [vocab_size, hidden_size], padded to `padded_size` rows."""
    sharding = PaddedVocab(padded_size)
    return ParameterMap(name=name, hf=(hf,), hf_shapes=(shape,), sharding=sharding, group="tensor", copies=copies)


def check_coverage(rows: Sequence[ParameterMap], hf_shapes: Mapping[str, Sequence[int]], folder: str | Path) -> None:
    """Checks that every tensor has a row, and that every row has its tensors in their shapes.

    Raises UserError with the count and the first ten of each kind of mismatch.
    """
    expected = {name: shape for row in rows for name, shape in zip(row.hf, row.hf_shapes, strict=True)}
    copies = {copy: row.hf_shapes[0] for row in rows for copy in row.copies}
    if listed := list_mismatches(expected, hf_shapes, copies):
        remedy = _remedy(expected, [name for name in hf_shapes if name not in expected])
        raise UserError(f"{folder} does not hold the tensors of its model family: {listed}; {remedy}")


def _remedy(known: Collection[str], others: Sequence[str]) -> str:
    """Suggests a remedy for unexpected tensors (an adapter, a wrapper's prefix)."""
    if any(".base_layer." in name or ".lora_" in name for name in others):
        return "merge PEFT's adapter into the model with merge_and_unload, and save that with save_pretrained"
    if any(other.endswith(f".{name}") for name in known for other in others[:1]):
        return (
            "their names have a prefix, as those of a wrapped model do (torch.compile, FSDP): save the model inside it "
            "with save_pretrained"
        )
    return "check that config.json belongs to these weights and that the folder is complete"


def list_mismatches(
    expected: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]], copies: Mapping[str, Sequence[int]]
) -> str:
    """Returns the count and the first ten of each kind of mismatch as part of a sentence; empty if there are none.

    All are name -> shape; `copies` may be found, and need not be.
    """
    known = {**copies, **expected}
    mismatches = {
        "missing": [name for name in expected if name not in found],
        "without a row in the weight table": [name for name in found if name not in known],
        "of the wrong shape": [
            f"{name} {list(found[name])} instead of {list(shape)}"
            for name, shape in known.items()
            if name in found and tuple(found[name]) != tuple(shape)
        ],
    }
    return "; ".join(
        f"{len(names)} {what}: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
        for what, names in mismatches.items()
        if names
    )


def check_tied(rows: Sequence[ParameterMap], names: Collection[str], read: Read, folder: str | Path) -> None:
    """Checks that tied copies of a tensor (`copies` of its row) hold the same values, since only the tensor is read.

    Their dtypes may differ, and a NaN equals a NaN. Raises UserError if a copy differs.
    """
    for row in rows:
        size = row.hf_shapes[0][0]
        for copy in set(row.copies).intersection(names):
            for start in range(0, size, 1024):  # in steps, because it is a model's largest tensor
                stop = min(start + 1024, size)
                first, second = read(row.hf[0], 0, start, stop).double(), read(copy, 0, start, stop).double()
                if not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
                    raise UserError(
                        f"{folder} ties {copy} to {row.hf[0]} (tie_word_embeddings) but their values differ; set "
                        "tie_word_embeddings to false in config.json, or remove the one that is stale"
                    )


def _pieces(sizes: Sequence[int], piece: int, num_pieces: int) -> tuple[Block, ...]:
    """Returns piece number `piece` of every source, each cut into `num_pieces` equal pieces."""
    return tuple(
        Block(source, piece * (size // num_pieces), (piece + 1) * (size // num_pieces))
        for source, size in enumerate(sizes)
    )


def _slice(blocks: Sequence[Block], start: int, stop: int) -> Iterator[Block]:
    """Yields the rows [start, stop) of the blocks' concatenation."""
    at = 0
    for block in blocks:
        first, last = max(start - at, 0), min(stop - at, block.size)
        if first < last:
            yield Block(block.source, block.start + first, block.start + last)
        at += block.size


def _join(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
