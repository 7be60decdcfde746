"""Makes all ranks agree on a value, for every decision before a collective."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from megatron_sspo.errors import UserError
from megatron_sspo.processes.hang import waits_for_another_rank

T = TypeVar("T")

# Long enough for any wait: `processes.hang` ends a rank that makes no progress.
COLLECTIVE_TIMEOUT = timedelta(days=1)

# Parts of the error messages of gloo and NCCL when a peer has ended.
_BROKEN_CONNECTION = (
    *("gloo/transport", "Connection closed by peer", "Connection reset by peer", "Broken pipe"),
    *("ncclRemoteError", "remote process exited", "communicator was aborted"),
)

_control_group: Any = None  # a gloo group of all ranks if the default group uses NCCL; None: the default group


def make_control_group() -> None:
    """Makes the process group that sends Python objects. A collective, called once after `init_process_group`.

    With NCCL, a rank that waits for an object would occupy its GPU, and NCCL's own watchdog would end the job during a
    long generation. So objects are sent by gloo, between the hosts' memories.
    """
    global _control_group
    _control_group = (
        dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if dist.get_backend() == "nccl" else None
    )


def control_group() -> Any:
    """Returns the process group that sends Python objects; None is the default group."""
    return _control_group


def is_main() -> bool:
    """Returns whether this is rank 0. In this module, a process without a process group is the only rank."""
    return not dist.is_initialized() or dist.get_rank() == 0


def _waiting() -> AbstractContextManager[None]:
    """Returns the context of a wait that rank 0 alone limits: the others may have to wait for a long generation."""
    return waits_for_another_rank(is_limited=is_main())


def broadcast_from_rank_0(value: T) -> T:
    """Returns rank 0's value on every rank. A collective."""
    if not dist.is_initialized():
        return value
    held = [value]
    with _waiting():
        dist.broadcast_object_list(held, src=0, group=_control_group)
    return held[0]


def all_gather_objects(value: T) -> list[T]:
    """Returns the values of all ranks, in the order of ranks, on every rank. A collective."""
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    with _waiting():
        dist.all_gather_object(found, value, group=_control_group)
    return found


def barrier() -> None:
    """Waits until every rank calls this function. A collective."""
    if dist.is_initialized():
        with _waiting():
            dist.barrier(group=_control_group)


def run_on_rank_0(action: Callable[[], T]) -> T:
    """Runs `action` on rank 0 only, and returns its result, or raises its UserError, on every rank. A collective.

    Rule of this package: a branch that decides whether or which collective comes next depends only on values that are
    equal on all ranks. A value that only rank 0 has, because it comes from a file, a clock, a signal or a server, goes
    through this function:

        if not agree.run_on_rank_0(self._is_evaluated):
            self._evaluate()  # a collective: all ranks call it, or none does

    A value that may differ between ranks goes through `all_gather_objects` and is then combined. A value that all ranks
    compute from the configuration and the checkpoint needs no agreement.

    A rank never decides by its own look at a shared folder, because two nodes may see it differently for some seconds.

    Raises:
        UserError: `action` raised it on rank 0. Other exceptions are raised on rank 0 only, and end the run.
    """
    message, value = "", None
    if is_main():
        try:
            value = action()
        except UserError as error:
            message = str(error)
    message, value = broadcast_from_rank_0((message, value))
    if message:
        raise UserError(message)
    return value  # pyright: ignore[reportReturnType]


def is_broken_connection(error: BaseException) -> bool:
    """Returns whether a collective failed because another process of the run has ended."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _BROKEN_CONNECTION)


@contextmanager
def same_error_on_all_ranks() -> Iterator[None]:
    """Raises, on every rank, the UserError of the first rank that raises one inside. A collective."""
    failed: UserError | None = None
    try:
        yield
    except UserError as error:
        failed = error
    for message in all_gather_objects("" if failed is None else str(failed)):
        if message:
            raise UserError(message) from failed
