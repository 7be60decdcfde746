"""Patches that let the unchanged megatron-core run on CPU and gloo.

Megatron-Core names CUDA in four ways, and each has one patch:

1. the device API of `torch.cuda` (current device, streams, events): replaced by stand-ins, which need not do anything
   because a CPU runs everything in order;
2. `device="cuda"` in tensor factories: replaced by the CPU;
3. `Tensor.cuda()` is the identity, and `Tensor.type()` returns `torch.cuda.FloatTensor`, because the optimizers compare
   it with that literal;
4. the CUDA random generator: replaced by the CPU's.

`torch.cuda.is_available()` stays False. Gloo cannot gather or scatter parts of unequal size, which experts need under
expert and expert-tensor parallelism, so a patch adds that. Numerical results and schedules do not change.
Works with megatron-core 0.16.1 to 0.19.
"""

import contextlib
import functools
import logging
import os
from functools import partial
from typing import Any

import torch
from torch.utils._device import _device_constructors

_CPU = torch.device("cpu")


@functools.cache
def install() -> None:
    """Applies the patches, once per process. It has to run before anything imports megatron.core."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron asserts it under tensor parallelism
    _replace_device_api()
    _replace_factories()
    _replace_tensor_methods()
    _import_megatron_without_compiling()
    _replace_random_state()
    _return_numpy_split_sizes()
    _gather_and_scatter_unequal_parts()


class _Stream:
    """A stream on a device that runs everything in order."""

    cuda_stream = 0
    device = _CPU

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, *_: Any) -> None: ...
    def wait_event(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: Any) -> None: ...


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


def _constant(value: Any) -> Any:
    # a new function per name: torch._dynamo refuses one object under several names of torch
    return lambda *_, **__: value


def _replace_device_api() -> None:
    cuda: Any = torch.cuda
    stream = _Stream()
    cuda.current_device = _constant(_CPU)
    cuda.Stream, cuda.Event = _Stream, _Event
    cuda.current_stream, cuda.default_stream = _constant(stream), _constant(stream)
    cuda.stream = contextlib.nullcontext
    for name in ("synchronize", "empty_cache", "set_device", "set_stream"):
        setattr(cuda, name, _constant(None))


def _is_cuda(device: Any) -> bool:
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")


def _replace_factories() -> None:
    def on_cpu(factory: Any) -> Any:
        @functools.wraps(factory)
        def inner(*args: Any, **kwargs: Any) -> Any:
            if _is_cuda(kwargs.get("device")):
                kwargs["device"] = _CPU
            kwargs.pop("pin_memory", None)  # pinning needs an accelerator
            return factory(*args, **kwargs)

        return inner

    # torch caches the functions that `with torch.device(...)` applies to, and this call makes it cache the real ones.
    # Otherwise Transformers loads a model whose rotary frequencies are uninitialized memory.
    factories = [factory.__name__ for factory in _device_constructors()]
    likes = [f"{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn")]
    for name in filter(partial(hasattr, torch), (*factories, *likes)):
        setattr(torch, name, on_cpu(getattr(torch, name)))


def _replace_tensor_methods() -> None:
    tensor: Any = torch.Tensor
    module: Any = torch.nn.Module
    real_type, real_to = tensor.type, tensor.to

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return real_type(self).replace("torch.", "torch.cuda.", 1)
        return real_type(self, dtype, *args, **kwargs)

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and _is_cuda(args[0]):
            args = (_CPU, *args[1:])
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        return real_to(self, *args, **kwargs)

    tensor.type, tensor.to = type_, to
    tensor.cuda = lambda self, *_, **__: self
    module.cuda = lambda self, *_, **__: self


def _import_megatron_without_compiling() -> None:
    """Imports megatron.core.jit while torch.compile is the identity, so that Megatron's `jit_fuser` is the identity.

    Some forty small functions of Megatron then run eagerly, and no C++ compiler is needed at run time.
    """
    real = torch.compile
    compiler: Any = torch
    compiler.compile = lambda model=None, **_: model if model is not None else (lambda function: function)
    try:
        import megatron.core.jit  # noqa: F401
    finally:
        compiler.compile = real


def _replace_random_state() -> None:
    def get(*_: Any, **__: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def put(state: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.set_rng_state(state)

    cuda: Any = torch.cuda
    cuda.get_rng_state = cuda.random.get_rng_state = get
    cuda.set_rng_state = cuda.random.set_rng_state = put
    # torch.manual_seed itself calls torch.cuda.manual_seed_all, so only the single-device form is replaced
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))

    import megatron.core.tensor_parallel.random as random

    random._get_cuda_rng_state, random._set_cuda_rng_state = get, put  # pyright: ignore
    # the tracker warns if the CPU generator advances inside a GPU region; here they are the same generator
    logging.getLogger(random.__name__).addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())


def _return_numpy_split_sizes() -> None:
    """Makes the all-to-all dispatcher return numpy split sizes, which it does only when it copies them off a GPU."""
    import megatron.core.transformer.moe.token_dispatcher as token_dispatcher

    def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu  # pyright: ignore


def _gather_and_scatter_unequal_parts() -> None:
    """Gathers parts of unequal size by padding them to the largest, and scatters them from an all-reduced whole."""
    import megatron.core.tensor_parallel.mappings as mappings

    real_gather, real_scatter = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    def gather(input_: torch.Tensor, group: Any, output_split_sizes: Any = None, *args: Any, **kwargs: Any) -> Any:
        if output_split_sizes is None or group.size() == 1:
            return real_gather(input_, group, output_split_sizes, *args, **kwargs)
        largest = max(output_split_sizes)
        padded = input_.new_zeros(largest, *input_.shape[1:])
        padded[: len(input_)] = input_
        parts = real_gather(padded, group).split(largest)
        return torch.cat([part[:size] for part, size in zip(parts, output_split_sizes, strict=True)])

    def scatter(input_: torch.Tensor, group: Any, input_split_sizes: Any = None, *args: Any, **kwargs: Any) -> Any:
        if input_split_sizes is None or group.size() == 1:
            return real_scatter(input_, group, input_split_sizes, *args, **kwargs)
        whole = input_.clone()
        torch.distributed.all_reduce(whole, group=group)
        return whole.split(list(input_split_sizes))[group.rank()].contiguous()

    mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim = gather, scatter
