"""Replaces some elements of a model's weights in a server: those that have changed since the last sync.

A server that is started with this folder in PYTHONPATH and `--custom-weight-loader megatron_sspo_delta.load` calls
`load` for each request whose load_format has that name. It runs in SGLang's own environment, and imports only torch.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

NAME = "megatron_sspo_delta.load"
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of an element, by its size in bytes


def load(model: torch.nn.Module, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Writes the elements of a request, see `unpack`, into the model's parameters, and leaves the others as they are.

    The model's own `load_weights` fuses and shards the weights. It gets whole ones that know which elements count.
    """
    sent = dict(named_tensors)
    _Partial.storages = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    with torch.no_grad():
        model.load_weights(  # pyright: ignore[reportCallIssue]
            (name, _Partial(values, marks)) for name, values, marks in unpack(sent["table"], sent["body"])
        )


def unpack(table: Tensor, body: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields (name, values, marks) of each weight: a tensor with the new values, and where it has some.

    Args:
        table: JSON as bytes, [name, shape, dtype, number of changed elements, dtype of their gaps] of each weight.
        body: the gaps of each weight and then its values, all as bytes, compressed by zlib. A gap is the difference
            between the place of a changed element in the flattened weight and that of the one before. A weight of which
            every element has changed has no gaps.
    """
    content = torch.frombuffer(bytearray(zlib.decompress(body.cpu().numpy().data)), dtype=torch.uint8).to(body.device)
    end = 0

    def read(count: int, dtype: torch.dtype) -> Tensor:
        nonlocal end
        start, end = end, end + count * dtype.itemsize
        return content[start:end].clone().view(dtype)  # a copy is aligned

    for name, shape, dtype_name, count, gap_name in json.loads(table.cpu().numpy().tobytes()):
        dtype, size = getattr(torch, dtype_name), torch.Size(shape)
        places = read(count, getattr(torch, gap_name)).to(torch.int64).cumsum(0) if gap_name else slice(None)
        bits = content.new_zeros(size.numel(), dtype=BITS[dtype.itemsize])
        marks = content.new_zeros(size.numel(), dtype=torch.bool)
        bits[places], marks[places] = read(count, bits.dtype), True
        yield name, bits.view(dtype).view(size), marks.view(size)


class _Partial(Tensor):
    """A weight of which only the marked elements count.

    Views and copies of it keep their marks, and a copy into a parameter leaves the parameter's other elements as they
    are. Marks are beside the values, since every bit pattern is the value of some weight.
    """

    storages: ClassVar[set[int]] = set()  # the addresses of the memory of parameters and buffers
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor, marks: Tensor) -> "_Partial":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=values.device,
        )

    def __init__(self, values: Tensor, marks: Tensor) -> None:
        self.whole, self.marks = values, marks

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and not isinstance(args[0], cls):
            return _merge(args[0], args[1])
        values, marks = (tree_map_only(cls, attrgetter(name), (args, kwargs or {})) for name in ("whole", "marks"))
        marks[1].pop("dtype", None)
        return tree_map(
            lambda found, mark: cls(found, mark) if isinstance(found, Tensor) else found,
            func(*values[0], **values[1]),
            func(*marks[0], **marks[1]),
        )


def _merge(target: Tensor, source: _Partial) -> Tensor:
    if target.untyped_storage().data_ptr() not in _Partial.storages:
        raise RuntimeError("the model copies weights on their way, so that changed elements alone cannot be loaded")
    values = source.whole.to(target.device, target.dtype)
    marks = source.marks.to(target.device, torch.bool)  # numbers, if the model has appended zeros
    bits = BITS[target.element_size()]
    target.view(bits).copy_(torch.where(marks, values.view(bits), target.view(bits)))
    return target
