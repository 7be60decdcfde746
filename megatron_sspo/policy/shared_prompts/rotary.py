"""The rotary embedding of packed rows, including rows in which a section does not begin at position 0."""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

from megatron_sspo.batching.context import zigzag
from megatron_sspo.policy.shared_prompts.packed import Rotation, RowParams, SharedSeqParams


class _RowEmbedding(RotaryEmbedding):
    """Megatron's rotary embedding, with a method of its own for rows of the type `kind`.

    Megatron asks for the length of the longest sequence, and has a table of angles made for it. For a row of this kind
    it gets the row's parameters in place of the length, and passes them on.

    Args:
        stock: the embedding that Megatron has built.
    """

    kind: type[RowParams]
    _stock: Any

    def __init__(self, stock: RotaryEmbedding) -> None:
        torch.nn.Module.__init__(self)
        self.__dict__.update(stock.__dict__)
        self.__dict__["_stock"] = stock  # not a module of this one, which has its buffers

    def get_rotary_seq_len(self, *args: Any, **options: Any) -> Any:
        """Returns what Megatron calls `forward` with: a length, or the parameters of a row."""
        found = [value for value in (*args, *options.values()) if isinstance(value, self.kind)]
        return found[0] if found else super().get_rotary_seq_len(*args, **options)

    def forward(self, max_seq_len: Any, *args: Any, **options: Any) -> Any:
        """Returns the angles of each position; for a shared row, those of `angles_of`."""
        if not isinstance(max_seq_len, self.kind):
            return self._stock(max_seq_len, *args, **options)
        return self.angles_of(max_seq_len)

    def angles_of(self, row: Any) -> Any:
        """Returns what Megatron passes to its layers: angles, or None if the layers are not to turn anything."""
        raise NotImplementedError


class RowRotaryEmbedding(_RowEmbedding):
    """Megatron's rotary embedding, which computes the cosines and sines of a packed row once.

    Megatron's layers compute them from angles, each layer for its queries and for its keys, and again where a layer is
    recomputed, and every layer keeps its own for the backward pass. Here the layers get no angles, and
    `PackedAttention` turns queries and keys by the row's `rotation`.

    Args:
        stock: the embedding that Megatron has built.
        dtype: the dtype of queries and keys.
    """

    kind = RowParams

    def __init__(self, stock: RotaryEmbedding, dtype: torch.dtype) -> None:
        super().__init__(stock)
        self._dtype = dtype

    def angles_of(self, row: RowParams) -> None:
        """Sets the row's rotation, and returns no angles."""
        assert row.position_ids is not None
        positions = row.position_ids
        tables = self.get_cos_sin(int(positions.max()) + 1)  # [positions, head_dim / 2]
        row.rotation = Rotation(*(table.to(positions.device, self._dtype)[positions, None, None] for table in tables))


class SharedRotaryEmbedding(_RowEmbedding):
    """Megatron's rotary embedding, which in a row with shared prompts takes a token's position from `position_ids`.

    Megatron reads row i of the table of angles at token i of each sequence. A row with shared prompts is one sequence
    to Megatron, so row i of its table gets the angles of the row's token i. Only this way also works for the fused
    kernel, which always begins at row 0.
    """

    kind = SharedSeqParams

    def angles_of(self, row: SharedSeqParams) -> Any:
        """Returns the angles of each of the row's tokens; of YaRN the factor of cosines and sines, too."""
        assert row.position_ids is not None
        angles = self._stock.get_emb(int(row.position_ids.max()) + 1)
        angles, *factor = angles if isinstance(angles, tuple) else (angles,)
        angles = angles[row.position_ids]
        # a context-parallel rank reads its zigzag parts of the table only, so only these are filled
        num_ranks = parallel_state.get_context_parallel_world_size()
        table = angles.new_zeros(len(angles) * num_ranks, *angles.shape[1:])
        own = zigzag([0, len(table)], parallel_state.get_context_parallel_rank(), num_ranks)
        table[own.to(table.device)] = angles
        return (table, *factor) if factor else table


def rotate(values: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Returns queries or keys [T/C, heads, head_dim], turned by their tokens' positions.

    Dimension i makes a pair with dimension i + d / 2, as in Transformers. If the tables are for fewer than head_dim
    dimensions, d is theirs, and the others stay as they are.
    """
    return _Rotate.apply(values, *rotation)  # pyright: ignore


class _Rotate(torch.autograd.Function):
    """(x, y) -> (x cos − y sin, y cos + x sin), which keeps nothing but cosines and sines for the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Any, cos: Any, sin: Any) -> Any:
        ctx.save_for_backward(cos, sin)
        return _turn(values, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # pyright: ignore
        cos, sin = ctx.saved_tensors
        return _turn(gradient, cos, -sin), None, None


def _turn(values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    if (count := 2 * cos.size(-1)) < values.size(-1):
        return torch.cat([_turn(values[..., :count], cos, sin), values[..., count:]], dim=-1)
    pairs = values.unflatten(-1, (2, -1))
    turned = pairs * cos
    (x, y), (turned_x, turned_y) = pairs.unbind(-2), turned.unbind(-2)
    turned_x -= y * sin[:, :, 0]
    turned_y += x * sin[:, :, 0]
    return turned.flatten(-2)
