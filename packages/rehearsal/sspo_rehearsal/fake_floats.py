"""A dispatch mode in which floating-point tensors have a shape and no storage, while integers and booleans are real.

Integers decide which tokens go where, so the sizes of a mixture of experts' messages follow from them; they are small.
Floating-point tensors are on torch's `meta` device, which computes shapes only. An operator with such an input runs
there; the others run as usual.

All other ranks are assumed to hold this rank's tensors: a collective fills in the integers that it would write then,
such as the numbers of tokens for each expert.
"""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.utils._pytree import tree_leaves, tree_map

from sspo_rehearsal.ledger import Ledger
from sspo_rehearsal.recorder import COLLECTIVES, Recorder, Route, aten

META = torch.device("meta")
CPU = torch.device("cpu")


class FakeFloats(Recorder):
    """Runs operators on shapes, and writes into the ledger what they would do.

    `received` is the shape of the hidden states that a pipeline stage is told to expect by its neighbour.
    """

    def __init__(self, ledger: Ledger, num_experts: int, route: Route, *, received: tuple[int, ...]) -> None:
        super().__init__(ledger, num_experts, route)
        self._received = received

    def _run_collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        return _run_collective(func, args, received=self._received)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        has_fake = any(tensor.is_meta for tensor in tensors)
        if "device" in _arguments(func):
            dtype = _result_dtype(func, args, kwargs)
            if func in _COPIES:
                return _copy(func, args, kwargs, dtype)
            device = META if dtype.is_floating_point else CPU
            found = func(*args, **{**kwargs, "dtype": dtype, "device": device, "pin_memory": False})
            if func in _CONSTANTS:
                found.constant_value = _CONSTANTS[func]  # known until it is converted to an integer: `_copy`
            return found
        if not has_fake:
            return func(*args, **kwargs)
        if (special := _SPECIAL.get(func)) is not None:
            return special(*args, **kwargs)
        if func in _INDEXING:
            args = (args[0], _as_numbers(args[1]), *args[2:])
        found = func(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
        if not _writes_first(func):
            return found
        args[0].constant_value = None
        return args[0]  # an operator in place returns its first argument, which stays real if it was


_COPIES = {aten._to_copy.default}
_CONSTANTS = {aten.zeros_like.default: 0, aten.ones_like.default: 1}
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}


@functools.cache
def _arguments(func: Any) -> frozenset[str]:
    return frozenset(argument.name for argument in func._schema.arguments)


@functools.cache
def _writes_first(func: Any) -> bool:
    first = func._schema.arguments[0] if func._schema.arguments else None
    return bool(first and first.alias_info and first.alias_info.is_write and func._schema.returns)


def _result_dtype(func: Any, args: Any, kwargs: Any) -> torch.dtype:
    """Returns the dtype of a new tensor, by torch's rules for factories."""
    if (dtype := kwargs.get("dtype")) is not None:
        return dtype
    if args and isinstance(args[0], torch.Tensor):
        return args[0].dtype
    numbers = [value for value in args if isinstance(value, (bool, int, float))]
    if func._overloadpacket in (aten.arange, aten.full) and numbers:
        if any(isinstance(value, float) for value in numbers):
            return torch.get_default_dtype()
        is_bool = func._overloadpacket is aten.full and isinstance(numbers[-1], bool)
        return torch.bool if is_bool else torch.int64
    return torch.get_default_dtype()


def _copy(func: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """Converts a tensor: a real integer stays real, a floating-point result is fake."""
    source = args[0]
    if not source.is_meta:
        if dtype.is_floating_point and not source.is_floating_point():
            return torch.empty(source.shape, dtype=dtype, device=META)
        if dtype == source.dtype:  # a copy to the device of tensors without storage, which is no other device
            return source
        return func(source, **{**kwargs, "device": CPU, "pin_memory": False})
    if not dtype.is_floating_point and (value := getattr(source, "constant_value", None)) is not None:
        return torch.full(source.shape, value, dtype=dtype)
    return func(source, **{**kwargs, "device": META, "pin_memory": False})


def _to_meta(value: Any) -> Any:
    return value.to(META) if isinstance(value, torch.Tensor) and not value.is_meta else value


def _as_numbers(indices: Any) -> list[Any]:
    """Returns real masks as the numbers of their true elements, whose count is the size of the result."""
    found: list[Any] = []
    for index in indices:
        if index is not None and not index.is_meta and index.dtype in (torch.bool, torch.uint8):
            found += index.nonzero(as_tuple=True)
        else:
            found.append(index)
    return found


def _item(tensor: torch.Tensor) -> bool | int | float:
    """Returns the value that an unknown number is taken to have: 0.5, a norm that is not clipped, False or 0."""
    if tensor.dtype.is_floating_point:
        return 0.5
    return False if tensor.dtype == torch.bool else 0


def _masked_select(source: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.empty(int(mask.expand(source.shape).sum()), dtype=source.dtype, device=META)


_SPECIAL = {
    aten._local_scalar_dense.default: _item,
    aten.equal.default: lambda left, right: True,
    aten.masked_select.default: _masked_select,
}


def _run_collective(func: Any, args: Any, *, received: tuple[int, ...]) -> Any:
    """Fills in the integers that a collective writes, and returns its result; `received`: see `FakeFloats`."""
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
