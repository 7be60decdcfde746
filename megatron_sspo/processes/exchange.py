"""Sends Python objects between ranks, to those alone that need them."""

import io
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from megatron_sspo.processes import agree

_SIZE, _CONTENT = 1, 2  # tags of the two messages of an object
_PROTOCOL = 5  # arrays are written without a copy in between


def exchange(outgoing: Iterable[tuple[Sequence[int], Any]], incoming: Sequence[int]) -> list[Any]:
    """Sends objects, and returns those that other ranks send to this one.

    Every pair of ranks exchanges at most one object in a call, and both know that it does.

    Args:
        outgoing: the ranks that an object is for, without this one, and the object. It is sent before the next one is
            drawn, so at most one is in memory a second time. A rank that also receives has at most one to send.
        incoming: the ranks from which an object comes, without this one.

    Returns:
        The objects, in the order of `incoming`.
    """
    group, sending, buffer = agree.control_group(), [], None
    for ranks, value in outgoing:
        _wait(sending)
        buffer = _pickled(value) if ranks else None
        sending = []
        for rank in ranks:
            assert buffer is not None
            sending.append(dist.isend(torch.tensor([len(buffer)]), rank, group=group, tag=_SIZE))
            sending.append(dist.isend(buffer, rank, group=group, tag=_CONTENT))
    received = [_receive(rank, group) for rank in incoming]
    _wait(sending)
    return received


def _pickled(value: Any) -> torch.Tensor:
    content = io.BytesIO()
    pickle.dump(value, content, protocol=_PROTOCOL)
    return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


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
