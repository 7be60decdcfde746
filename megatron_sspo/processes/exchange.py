"""Sends Python objects between ranks, each object only to the ranks that need it."""

import io
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from megatron_sspo.processes import agree
from megatron_sspo.processes.hang import waits_for_another_rank

_SIZE, _CONTENT = 1, 2  # tags of the two messages of an object
_PROTOCOL = 5  # arrays are written without a copy in between


def exchange(outgoing: Iterable[tuple[Sequence[int], Any]], incoming: Sequence[int]) -> list[Any]:
    """Sends objects, and returns those that other ranks send to this one.

    A call sends at most one object from one rank to another, and both ranks know that it does.

    Args:
        outgoing: pairs of the ranks that get an object, without this one, and the object. An object is pickled when
            the one before it has been sent, so that one pickled copy is in memory. A rank that also receives sends at
            most one object.
        incoming: the ranks, without this one, that send it an object.

    Returns:
        The objects, in the order of `incoming`.
    """
    group, sending = agree.control_group(), []
    for ranks, value in outgoing:
        _wait(sending)
        sending = []  # frees the pickled copy
        sending = _send(value, ranks, group)
    with waits_for_another_rank(is_limited=False):  # the sender has a limit of its own
        received = [_receive(rank, group) for rank in incoming]
    _wait(sending)
    return received


def _send(value: Any, ranks: Sequence[int], group: Any) -> list[Any]:
    """Begins to send an object to some ranks, and returns the work to wait for."""
    if not ranks:
        return []
    content = io.BytesIO()
    pickle.dump(value, content, protocol=_PROTOCOL)
    buffer = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
    size = torch.tensor([len(buffer)])
    messages = ((size, _SIZE), (buffer, _CONTENT))
    return [dist.isend(message, rank, group=group, tag=tag) for rank in ranks for message, tag in messages]


def _receive(rank: int, group: Any) -> Any:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, rank, group=group, tag=_SIZE)
    content = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(content, rank, group=group, tag=_CONTENT)
    received: Any = content.numpy()
    return pickle.loads(received)


def _wait(sending: Iterable[Any]) -> None:
    for work in sending:
        work.wait()
