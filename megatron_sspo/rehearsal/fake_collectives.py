"""Collectives without other ranks: every rank is taken to have what this rank has.

Floating-point tensors have no values to communicate. Integers, such as the numbers of tokens for each expert, get the
values that they would have if all ranks had this rank's.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.utils._pytree import tree_leaves

from megatron_sspo.rehearsal.recorder import COLLECTIVES


def run_collective(func: Any, args: Any, *, received: tuple[int, ...]) -> Any:
    """Fills in the integers that a collective writes, and returns what its operator returns.

    Args:
        received: the shape of the hidden states that a pipeline stage is told to expect by its neighbour.
    """
    name = func._schema.name.split("::")[1]
    kind, group_at, _ = COLLECTIVES[name]
    group: Any = dist.ProcessGroup.unbox(args[group_at])
    work = FakeWork().boxed()
    if kind == "all_reduce":
        for tensor in filter(_is_integer, tree_leaves(args[0])):  # the trainer only adds integers up
            tensor.mul_(group.size())
    elif name == "_allgather_base_" and _is_integer(args[0]):
        args[0].view(group.size(), -1).copy_(args[1].reshape(1, -1).expand(group.size(), -1))
    elif name == "allgather_":
        for outputs, own in zip(args[0], args[1], strict=True):
            for output in filter(_is_integer, outputs):
                output.copy_(own)
    elif name == "alltoall_base_" and _is_integer(args[0]):
        args[0].copy_(args[1])
    elif name == "recv_" and _is_integer(args[0][0]):
        args[0][0].copy_(torch.tensor(received))
    if len(func._schema.returns) == 1:
        return work
    return args[0], work


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_meta and not value.is_floating_point()
