"""The optimizer on the host: masters and Adam's moments of a share of the elements, which the CPU updates.

Of each parameter, Megatron's distributed optimizer holds the slice that this rank updates: a master in float32 (under
float32 the parameter itself) and two moments. Here those of a share of the slices lie in host memory, and everything
else is Megatron's: gradients stay where DDP has summed them up, so their norm is taken and they are clipped there, and
checkpoints have the same files. `optimizer_cpu_offload` of Megatron (0.16 to 0.19) needs CUDA, and its masters do not
follow weights that are loaded after it was built.

A step goes piece by piece. While the CPU updates a piece, the gradient of the next one arrives, and the weights of the
one before, rounded to the model's type, go back.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from megatron_sspo.policy.without_cuda.adam import update

# Elements: 64 MB of gradients. A multiple of 16, so that torch's kernel rounds every element as in the whole tensor.
_PIECE = 2**24


def host_empty(length: int, *, pinned: bool = False) -> torch.Tensor:
    """Returns a float32 tensor in host memory, which is `pinned` if a GPU reads or writes it while others compute.

    torch rounds the size of pinned memory up to a power of two, so only buffers are pinned.
    """
    return torch.empty(length, dtype=torch.float32, device="cpu", pin_memory=pinned and torch.cuda.is_available())


class CopyStream:
    """A stream of copies in one direction between the host and a GPU, while both compute."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def begin(self) -> None:
        """Makes the copies that follow wait for what the GPU has been told to compute."""
        self._stream.wait_stream(torch.cuda.current_stream())

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> Any:
        """Starts a copy, and returns an event to wait for; the tensor on the host has to be pinned."""
        with torch.cuda.stream(self._stream):
            destination.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def end(self) -> None:
        """Makes what the GPU computes next wait for the copies."""
        torch.cuda.current_stream().wait_stream(self._stream)


class HostMaster(torch.Tensor):
    """The master of a slice, in host memory."""

    grad: Any = None  # where the model is; torch wants a tensor's own gradient where the tensor is
    weight: torch.Tensor  # the slice of the model's parameter
    # what is computed from it is a plain tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @classmethod
    def of(cls, weight: torch.Tensor) -> "HostMaster":
        """Returns the master of a slice, with what Megatron has noted about the parameter."""
        master: HostMaster = torch.Tensor._make_subclass(cls, host_empty(weight.numel()).copy_(weight.detach()))
        vars(master).update(vars(weight), weight=weight.detach())
        return master


class _Piece(NamedTuple):
    group: dict[str, Any]
    weight: torch.Tensor
    gradient: torch.Tensor
    master: torch.Tensor
    moments: list[list[torch.Tensor]]  # as `update` takes them


def offloaded_optimizer(config: OptimizerConfig, chunks: list[Any], share: float) -> Any:
    """Returns Megatron's optimizer with a share of its state on the host.

    The share, above 0 and at most 1, is of the elements that each rank updates. Slices are not divided, so it is met up
    to half of the largest slice.
    """
    # without it Megatron would make all masters on the GPU first, where they may not fit
    config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
    optimizer: Any = get_megatron_optimizer(config, chunks)
    config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = False
    pipeline = _Pipeline()
    for each in optimizer.chained_optimizers:
        if not each.is_stub_optimizer:
            _Offload(each, pipeline, share)
    return optimizer


class _Offload:
    """The share of one distributed optimizer, whose step and copy of weights it replaces."""

    def __init__(self, optimizer: Any, pipeline: "_Pipeline", share: float) -> None:
        self._adam, self._pipeline, self._share = optimizer.optimizer, pipeline, share
        self._seen = self._held = 0  # elements, and those of them on the host
        self._on_device: list[tuple[torch.Tensor, torch.Tensor]] = []  # weights and their masters
        lists = (optimizer.shard_fp32_groups, optimizer.shard_float16_groups, optimizer.shard_fp32_from_float16_groups)
        for group, own, rounded, masters, parameters in zip(
            self._adam.param_groups, *lists, optimizer.model_float16_groups, strict=True
        ):
            own[:] = map(self._master, own)
            masters[:] = map(self._master, rounded)
            for parameter, master in zip(parameters, masters, strict=True):
                parameter.main_param = master
            group["params"] = [*own, *masters]
        self._step_on_device = self._adam.step
        self._adam.step = self._step
        # that of Transformer Engine copies all moments once more
        self._adam.load_state_dict = partial(torch.optim.Optimizer.load_state_dict, self._adam)
        optimizer._copy_main_params_to_model_params = self._copy_on_device

    def _master(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the master of a slice: on the host, unless more than the share would lie there."""
        self._seen += weight.numel()
        if self._held + weight.numel() / 2 <= self._share * self._seen:
            self._held += weight.numel()
            master = HostMaster.of(weight)
            moments = (host_empty(weight.numel()).zero_() for _ in range(2))
            self._adam.state[master] = dict(zip(("exp_avg", "exp_avg_sq"), moments, strict=True))
            return master
        if weight.dtype == torch.float32:
            return weight
        master = weight.clone().float()
        vars(master).update(vars(weight))
        self._on_device.append((weight, master))
        return master

    def _step(self) -> None:
        groups = self._adam.param_groups
        number = 1 + max(group.get("step", 0) for group in groups)
        pieces = list(self._pieces())
        self._pipeline.begin(pieces)
        params = [group["params"] for group in groups]
        for group in groups:
            group["params"] = [master for master in group["params"] if not isinstance(master, HostMaster)]
        self._step_on_device()
        for group, every in zip(groups, params, strict=True):
            group["params"] = every
            if every:
                group["step"] = number  # Transformer Engine leaves it out where nothing is on the GPU
        self._pipeline.run(pieces, number)

    def _pieces(self) -> Iterator[_Piece]:
        for group in self._adam.param_groups:
            for master in group["params"]:
                if isinstance(master, HostMaster):
                    state = self._adam.state[master]
                    tensors = (master.weight, master.grad, master, state["exp_avg"], state["exp_avg_sq"])
                    for weight, gradient, part, *moments in zip(*(each.split(_PIECE) for each in tensors), strict=True):
                        yield _Piece(group, weight, gradient, part, [[moment] for moment in moments])

    def _copy_on_device(self) -> None:
        for weight, master in self._on_device:
            weight.copy_(master)


class _Pipeline:
    """Two buffers and a stream for each direction: a piece is copied while another one is computed."""

    def __init__(self) -> None:
        self._down, self._up = CopyStream(), CopyStream()
        self._gradients, self._weights = ([host_empty(_PIECE, pinned=True) for _ in range(2)] for _ in range(2))
        self._arrived, self._left = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

    def begin(self, pieces: Sequence[_Piece]) -> None:
        """Starts to copy the first gradient."""
        self._down.begin()
        self._up.begin()
        self._fetch(pieces, 0)

    def run(self, pieces: Sequence[_Piece], step: int) -> None:
        """Updates the pieces and starts to copy the weights to the model, which the GPU will wait for."""
        for number, piece in enumerate(pieces):
            buffer, length = number % 2, len(piece.master)
            self._fetch(pieces, number + 1)
            self._arrived[buffer].synchronize()
            update(piece.group, step, [piece.master], [self._gradients[buffer][:length]], *piece.moments)
            self._left[buffer].synchronize()
            rounded = self._weights[buffer].view(piece.weight.dtype)[:length].copy_(piece.master)
            self._left[buffer] = self._up.copy(rounded, piece.weight)
        self._up.end()

    def _fetch(self, pieces: Sequence[_Piece], number: int) -> None:
        if number < len(pieces):
            gradient = pieces[number].gradient
            self._arrived[number % 2] = self._down.copy(gradient, self._gradients[number % 2][: len(gradient)])
