"""Values that all ranks agree on, for every decision that stands in front of a collective."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from megatron_sspo.errors import UserError

T = TypeVar("T")

# Long enough for any wait: the watchdog, which sees whether the run makes progress, is what ends one that hangs.
PATIENCE = timedelta(days=1)

# What gloo and NCCL say of a peer that has ended.
_BROKEN_CONNECTION = (
    *("gloo/transport", "Connection closed by peer", "Connection reset by peer", "Broken pipe"),
    *("ncclRemoteError", "remote process exited", "communicator was aborted"),
)

_control: Any = None  # a gloo group of all ranks where the default group is NCCL's; None: the default group


def make_control_group() -> None:
    """Makes the group that objects travel by. A collective, to be called once after `init_process_group`.

    On NCCL a rank that waits for another one's objects would occupy its GPU, and NCCL's own watchdog would end the job
    when generation takes long. So objects travel by gloo, between the hosts' memories.
    """
    global _control
    _control = dist.new_group(backend="gloo", timeout=PATIENCE) if dist.get_backend() == "nccl" else None


def is_main() -> bool:
    """Whether this is rank 0. A process without a group is alone, here and in the functions below."""
    return not dist.is_initialized() or dist.get_rank() == 0


def from_main(value: T) -> T:
    """Returns rank 0's value on every rank. A collective."""
    if not dist.is_initialized():
        return value
    held = [value]
    dist.broadcast_object_list(held, src=0, group=_control)
    return held[0]


def gather(value: T) -> list[T]:
    """Returns the values of all ranks, in the order of ranks, on every rank. A collective."""
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value, group=_control)
    return found


def barrier() -> None:
    """Returns when every rank has come here. A collective."""
    if dist.is_initialized():
        dist.barrier(group=_control)


def on_main(action: Callable[[], T]) -> T:
    """Runs `action` on rank 0 alone, and returns its result, or raises its UserError, on every rank. A collective.

    How agreement works in this package: a branch that decides whether or which collective comes next is taken by a
    value that is the same on every rank. A value that only rank 0 can know, because it reads or writes a file, a clock,
    a signal or a server, goes through this function:

        if not agree.on_main(self._is_evaluated):
            self._evaluate()  # a collective: all ranks come here, or none does

    A value that every rank has, but may have differently, goes through `gather` and is then combined. What all ranks
    compute alike from the configuration and the checkpoint needs no agreement.

    Files are a case of their own: two nodes may see a shared folder differently for some seconds, so that a rank never
    decides by its own look at it.

    Raises:
        UserError: `action` raised it on rank 0. Other exceptions are raised there alone, and end the run.
    """
    message, value = "", None
    if is_main():
        try:
            value = action()
        except UserError as error:
            message = str(error)
    message, value = from_main((message, value))
    if message:
        raise UserError(message)
    return value  # pyright: ignore[reportReturnType]


def is_broken_connection(error: BaseException) -> bool:
    """Whether a collective failed because another process of the run is gone."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _BROKEN_CONNECTION)


def raise_first(error: UserError | None) -> None:
    """Raises, on every rank, the error of the first rank that has one. A collective, also for ranks without an error.

    Raises:
        UserError: a rank has one.
    """
    for message in gather(str(error) if error is not None else ""):
        if message:
            raise UserError(message) from error
