"""The ways in which parallel ranks shard a parameter, each as ranges of Hugging Face tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

Shape = tuple[int, ...]


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
        return tuple(cut(whole, shard * size, (shard + 1) * size))


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
        return tuple(cut(whole, shard * size, (shard + 1) * size))


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


def _pieces(sizes: Sequence[int], piece: int, num_pieces: int) -> tuple[Block, ...]:
    """Returns piece number `piece` of every source, each cut into `num_pieces` equal pieces."""
    return tuple(
        Block(source, piece * (size // num_pieces), (piece + 1) * (size // num_pieces))
        for source, size in enumerate(sizes)
    )


def cut(blocks: Sequence[Block], start: int, stop: int) -> Iterator[Block]:
    """Yields the rows [start, stop) of the blocks' concatenation."""
    at = 0
    for block in blocks:
        first, last = max(start - at, 0), min(stop - at, block.size)
        if first < last:
            yield Block(block.source, block.start + first, block.start + last)
        at += block.size
