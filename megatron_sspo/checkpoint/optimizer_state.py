"""Divides the distributed optimizer's state among the ranks that write it, and reads each rank's part of it.

Megatron's `fully_reshardable` has, for each parameter, three tensors of its shape: its float32 copy and Adam's moments.
A rank of a data-parallel group holds a slice of each bucket, so a parameter may lie on several ranks, and one of them
has to put it together. In Megatron (0.16 to 0.19) that is the first rank of the group for all parameters, and to load
them every rank reads all. Here each rank puts together and writes its share, and reads only what it has a slice of. The
files have the same tensors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

_KEYS = ("param", "exp_avg", "exp_avg_sq")
_NAMES = "optimizer.state."  # the beginning of their names in a checkpoint
_METHOD = "sharded_param_state_fully_reshardable"  # Megatron's method that returns the tensors to write or to read

Slices = Mapping[int, tuple[int, int]]
"""Rank of the data-parallel group -> the part of a flat parameter, from and to, that this rank's optimizer holds."""


@dataclass(frozen=True, eq=False)
class _Held:
    """A parameter of a distributed optimizer."""

    number: int  # its place in the order in which Megatron numbers the optimizer's parameters
    parameter: Any
    slices: Slices
    writer: int = 0  # the rank of the group that writes the parameter and its state


@contextmanager
def divided_state(optimizer: Any) -> Iterator[None]:
    """Makes each rank write its share of the optimizer's state, and read no more than it needs, inside."""
    with ExitStack() as stack:
        for each in _distributed(optimizer):

            def param_state(model: Any, is_loading: bool = False, *_: Any, of: Any = each) -> dict[int, Any]:
                return (_tensors_to_read if is_loading else _tensors_to_write)(of, _described(model))

            setattr(each, _METHOD, param_state)  # hides the method of the class until it is deleted
            stack.callback(delattr, each, _METHOD)
        yield


def divide_weights(model: Any, optimizer: Any) -> None:
    """Makes the rank that writes the state of a parameter write the parameter itself, too: changes `model`'s state."""
    described = _described(model)
    for each in _distributed(optimizer):
        own = each.data_parallel_group_gloo.rank()
        for held in _parameters(each):
            tensor = described[held.parameter]
            tensor.replica_id = (*tensor.replica_id[:-1], _replica(each, own, held.writer))


def is_copied(optimizer: Any, name: str) -> bool:
    """Returns whether a tensor to write was put together for the checkpoint alone, so that training leaves it."""
    return name.startswith(_NAMES) and bool(_distributed(optimizer))


def writers(sizes: Sequence[int], slices: Sequence[Slices], num_ranks: int) -> list[int]:
    """Returns the rank that writes each tensor: the one that holds most of it, unless it has its share already.

    No rank gets more than an equal share plus the largest tensor.
    """
    share, loads, chosen = sum(sizes) / num_ranks, [0] * num_ranks, []
    for size, parts in zip(sizes, slices, strict=True):
        held = {rank: end - start for rank, (start, end) in parts.items()}
        writer = min(
            range(num_ranks), key=lambda rank: (max(0.0, loads[rank] - share), -held.get(rank, 0), loads[rank])
        )
        loads[writer] += size
        chosen.append(writer)
    return chosen


def _distributed(optimizer: Any) -> list[Any]:
    chain = getattr(optimizer, "chained_optimizers", [optimizer])
    return [each for each in chain if isinstance(each, DistributedOptimizer)]


def _described(model: Any) -> dict[Any, Any]:
    """Returns the sharded tensor that describes each parameter."""
    sharded, _ = extract_sharded_tensors_and_factories(model)
    return {tensor.data: tensor for tensor in nested_values(sharded)}


def _parameters(optimizer: Any) -> list[_Held]:
    found = []
    num_ranks = optimizer.data_parallel_group_gloo.size()
    for buffer in optimizer.buffers:
        lengths = [bucket.grad_data.numel() for bucket in buffer.buckets]  # with padding, as positions in a buffer are
        begins = [0, *accumulate(lengths)]
        for parameter, (start, end, bucket) in buffer.param_index_map.items():
            first, each = start - begins[bucket], lengths[bucket] // num_ranks
            slices = {
                rank: (max(0, rank * each - first), min(end - start, (rank + 1) * each - first))
                for rank in range(first // each, (first + end - start - 1) // each + 1)
            }
            found.append(_Held(len(found), parameter, slices))
    chosen = writers([held.parameter.numel() for held in found], [held.slices for held in found], num_ranks)
    return [replace(held, writer=writer) for held, writer in zip(found, chosen, strict=True)]


def _replica(optimizer: Any, own: int, writer: int) -> int:
    """Returns the number of this rank's copy of a tensor; copy 0, which `writer` has, is the one that counts."""
    group = optimizer.data_parallel_group_gloo
    return optimizer.distributed_optimizer_instance_id * group.size() + (own - writer) % group.size()


def _tensors_to_write(optimizer: Any, described: Mapping[Any, Any]) -> dict[int, Any]:
    """Returns the state of the parameters that this rank writes. A collective of the data-parallel group."""
    group = optimizer.data_parallel_group_gloo
    own, found = group.rank(), {}
    for held in _parameters(optimizer):
        tensor = described[held.parameter]
        if any(tensor.replica_id[:-1]):  # tensor- or pipeline-parallel ranks have the same, and others write it
            continue
        values = _collect(optimizer, held, group)
        if own == held.writer:
            found[held.number] = _like(tensor, values, _replica(optimizer, own, own), _cut)
    return found


def _cut(factory: Any) -> Any:
    """Returns the parts that a factory makes, each in memory of its own.

    Megatron would make those of all parameters, and copy each view while the whole tensors are still held.
    """
    parts = factory.build()
    for part in nested_values(parts):
        part.data = part.data.clone()
    return parts


def _collect(optimizer: Any, held: _Held, group: Any) -> dict[str, torch.Tensor]:
    """Returns a parameter's state on its writer; the other ranks send their slices to the writer, and return nothing.

    All ranks go through the parameters in the same order, so no two ranks wait for each other.
    """
    own, ranks = group.rank(), dist.get_process_group_ranks(group)
    if own != held.writer and own not in held.slices:
        return {}
    slice_of: Mapping[str, torch.Tensor] = {}
    if own in held.slices:
        slice_of = optimizer._get_main_param_and_optimizer_states(held.parameter)
    if own != held.writer:
        for key in _KEYS:
            dist.send(slice_of[key].detach().to("cpu", torch.float32).contiguous(), ranks[held.writer], group=group)
        return {}
    values = {}
    for key in _KEYS:
        whole = torch.empty(held.parameter.numel(), dtype=torch.float32, device="cpu")
        for rank, (start, end) in held.slices.items():
            if rank == own:
                whole[start:end].copy_(slice_of[key].detach().view(-1))
            else:
                dist.recv(whole[start:end], ranks[rank], group=group)
        values[key] = whole
    return values


def _tensors_to_read(optimizer: Any, described: Mapping[Any, Any]) -> dict[int, Any]:
    """Returns empty tensors for the state of the parameters that this rank holds a slice of."""
    own, found = optimizer.data_parallel_group_gloo.rank(), {}
    for held in _parameters(optimizer):
        if own in held.slices:
            length = held.parameter.numel()
            values = {key: torch.empty(length, dtype=torch.float32, device="cpu") for key in _KEYS}
            reader = min(held.slices)  # Megatron checks that one rank's copy is the one that counts
            replica = _replica(optimizer, own, reader)
            found[held.number] = _like(described[held.parameter], values, replica, _read_in_place)
    return found


def _read_in_place(factory: Any) -> Any:
    """Returns the factory with a merge that copies nothing if the parts were read into views of its tensor."""
    whole, merge = factory.data, factory.merge_fn
    place = whole.untyped_storage().data_ptr()

    def merged(parts: Any) -> torch.Tensor:
        are_views = all(part.untyped_storage().data_ptr() == place for part in nested_values(parts))
        return whole if are_views else merge(parts)

    return replace(factory, merge_fn=merged)


def _like(
    described: Any, values: Mapping[str, torch.Tensor], replica: int, of_factory: Callable[[Any], Any]
) -> dict[str, Any]:
    """Returns the sharded tensors of a parameter's state, which lie as it does; `of_factory` replaces factories."""
    found: dict[str, Any] = {}
    outer: tuple[int, ...] = described.replica_id[:-1]
    is_factory = isinstance(described, ShardedTensorFactory)
    for key, value in values.items():
        fields: dict[str, Any] = {
            "key": f"{_NAMES}{key}.{described.key}",
            "data": value.view(described.data.shape),
            "replica_id": (*outer, replica),
        }
        if not is_factory:
            fields["dtype"] = torch.float32
        tensor = replace(described, **fields)
        tensor.validate_metadata_integrity()
        found[key] = of_factory(tensor) if is_factory else tensor
    return found
