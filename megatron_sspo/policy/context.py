"""Gathers values of a microbatch's response tokens from the context-parallel ranks that hold them."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region


def gather_responses(
    values: torch.Tensor, counts: Sequence[int], order: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Gathers the values of all response tokens, in the order of the packed row, on every rank of the group.

    Every rank has to call this, even if it has no response token. All ranks then compute the same from the result, so
    the backward pass is a slice (`tensor_parallel_output_grad=False`): each rank keeps the gradient of its own values.
    A sum over the C ranks would count each gradient C times.

    Args:
        values: [r], of this rank's response tokens.
        counts: r of each rank.
        order: [R], the permutation from the ranks' concatenated values to the row's order.

    Returns:
        [R], differentiable.
    """
    padded = F.pad(values, (0, max(counts) - len(values)))
    gathered = gather_from_sequence_parallel_region(padded, tensor_parallel_output_grad=False, group=group)
    by_rank = gathered.view(len(counts), -1)
    return torch.cat([row[:count] for row, count in zip(by_rank, counts, strict=True)])[order]
