"""The weight table, which is read in both directions.

A row (`ParameterMap`) says which Hugging Face tensors make up one Megatron parameter, and its `Sharding` how parallel
ranks shard it.
Everything follows from its `blocks`: a shard is a concatenation of ranges of the Hugging Face tensors. `to_megatron`
makes a shard of these ranges, and `to_hf` reverses it. Rows do not depend on process groups: a shard is a number.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.weights.sharding import (
    Block,
    EvenSplit,
    FusedExpert,
    GatedQKV,
    GroupedQKV,
    PaddedVocab,
    Shape,
    Sharding,
    cut,
)

Group = Literal["none", "tensor", "expert_tensor"]
Read = Callable[[str, int, int, int], Tensor]  # (Hugging Face name, dim, start, stop) -> that slice


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
        blocks = cut(self.row_blocks(), start, stop)
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


def _join(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
