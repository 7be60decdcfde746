"""A dispatch mode in which floating-point tensors have a shape and no storage, while integers and booleans are real.

Integers decide which tokens go where, so the sizes of a mixture of experts' messages follow from them; they are small.
Floating-point tensors are on torch's `meta` device, which computes shapes only. An operator with such an input runs
there; the others run as usual.
"""

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from megatron_sspo.rehearsal.books import Books
from megatron_sspo.rehearsal.fake_collectives import run_collective
from megatron_sspo.rehearsal.recorder import Recorder, Route, aten

META = torch.device("meta")
CPU = torch.device("cpu")


class FakeFloats(Recorder):
    """Runs operators on shapes, and writes into the books what they would do.

    Args:
        received: the shape of the hidden states that a pipeline stage is told to expect by its neighbour.
    """

    def __init__(self, books: Books, num_experts: int, route: Route, *, received: tuple[int, ...]) -> None:
        super().__init__(books, num_experts, route)
        self._received = received

    def _run_collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        return run_collective(func, args, received=self._received)

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
