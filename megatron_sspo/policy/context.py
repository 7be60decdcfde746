"""Gathers values of a microbatch's response tokens from the context-parallel ranks that hold them."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def gather_responses(
    values: torch.Tensor, counts: Sequence[int], order: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Gathers the values of all response tokens, in the order of the packed row, on every rank of the group.

    Every rank has to call this, even if it has no response token. All ranks then compute the same from the result, so
    the backward pass is a slice: each rank keeps the gradient of its own values. A sum over the C ranks would count
    each gradient C times.

    Args:
        values: [r], of this rank's response tokens.
        counts: r of each rank.
        order: [R], the permutation from the ranks' concatenated values to the row's order.

    Returns:
        [R], differentiable.
    """
    return _GatherResponses.apply(values, list(counts), order, group)  # pyright: ignore


class _GatherResponses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Any, counts: list[int], order: Any, group: Any) -> Any:
        longest = max(counts)
        padded = values.new_zeros(longest)
        padded[: len(values)] = values
        gathered = values.new_empty(len(counts), longest)
        dist.all_gather_into_tensor(gathered.view(-1), padded, group=group)
        ctx.save_for_backward(order)
        rank = dist.get_rank(group)
        ctx.own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        return torch.cat([row[:count] for row, count in zip(gathered, counts, strict=True)])[order]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # pyright: ignore
        (order,) = ctx.saved_tensors
        by_rank = torch.empty_like(gradient)
        by_rank[order] = gradient
        return by_rank[ctx.own], None, None, None
