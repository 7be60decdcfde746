"""The keys and values of a row with shared prompts: brought together from all ranks, and copied for their readers."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region


def gather_context(values: torch.Tensor) -> torch.Tensor:
    """Returns the rows of all context-parallel ranks, rank by rank; gradients are summed back to their owners."""
    if parallel_state.get_context_parallel_world_size() <= 1:  # 0 before there are groups
        return values
    group = parallel_state.get_context_parallel_group(check_initialized=False)
    return gather_from_sequence_parallel_region(values.contiguous(), group=group)


def take(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns `values[rows]`. Gradients of rows that are taken several times add up in float32 or wider."""
    return _Take.apply(values, rows)  # pyright: ignore


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Any, rows: Any) -> Any:
        ctx.save_for_backward(rows)
        ctx.num_rows = len(values)
        return values[rows]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # pyright: ignore
        (rows,) = ctx.saved_tensors
        wide = torch.promote_types(gradient.dtype, torch.float32)
        total = gradient.new_zeros(ctx.num_rows, *gradient.shape[1:], dtype=wide)
        return total.index_add_(0, rows, gradient.to(wide)).to(gradient.dtype), None


@contextmanager
def copied_again_in_backward(copies: Iterable[tuple[torch.Tensor, torch.Tensor]], rows: torch.Tensor) -> Iterator[None]:
    """Lets operators keep nothing of the copies for their backward pass, which copies the rows again.

    Args:
        copies: pairs of values, and `take(values, rows)`.
    """
    # only addresses are held: what is kept for the backward pass holds this function too, and would hold the copies
    sources = {copy.untyped_storage().data_ptr(): values.detach() for values, copy in copies}

    def pack(tensor: torch.Tensor) -> Any:
        values = sources.get(tensor.untyped_storage().data_ptr())
        if values is None:
            return tensor
        return _Copied(values, rows, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
        yield


class _Copied(NamedTuple):
    """A part of `values[rows]`, as it is kept for the backward pass."""

    values: torch.Tensor
    rows: torch.Tensor
    size: Sequence[int]
    stride: Sequence[int]
    offset: int


def _unpack(kept: Any) -> torch.Tensor:
    if not isinstance(kept, _Copied):
        return kept
    return kept.values[kept.rows].as_strided(kept.size, kept.stride, kept.offset)
