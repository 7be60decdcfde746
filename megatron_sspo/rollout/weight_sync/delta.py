"""Small syncs: of each weight, the elements whose bits have changed since the last sync."""

import base64
import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatron_sspo.processes import agree
from megatron_sspo.rollout.servers.loaders.megatron_sspo_delta import BITS, NAME
from megatron_sspo.rollout.weight_sync.session import (
    NamedTensor,
    Observe,
    SyncSession,
    Transport,
    at_rank_0,
    in_buckets,
)
from megatron_sspo.rollout.weight_sync.tensor import post_in_turn
from megatron_sspo.weights.gather import Entry
from megatron_sspo.weights.pieces import SENT_TOGETHER

_GAPS = (torch.uint8, torch.uint16, torch.int32, torch.int64)


class Change(NamedTuple):
    """The elements of a weight that have changed."""

    of: Entry  # name, shape and dtype of the weight
    gaps: Tensor  # of each element to the one before, in the flattened weight; empty if all have changed
    bits: Tensor  # the elements, as integers of their size


class DeltaTransport(Transport):
    """Sends changes in the body of requests if all servers have the weights of the last sync, else all weights.

    Rank 0 keeps a copy of the last sync's weights in its host's memory.

    Args:
        full: sends all weights.
        every: the number of syncs from one of all weights to the next.
    """

    def __init__(self, full: Transport, *, every: int, bucket_bytes: int, tp_size: int) -> None:
        self._full, self._every, self._bucket_bytes, self._tp_size = full, every, bucket_bytes, tp_size
        self._num_since = 0  # syncs since the last one of all weights, with itself
        self._last: dict[str, Tensor] = {}
        self._version = ""  # of these weights

    def send(
        self, session: SyncSession, tensors: Iterable[NamedTensor], version: str, observe: Observe | None = None
    ) -> None:
        """Gives the session's servers the weights. Their keys in the session have a `version`, None without weights."""
        is_small = self._num_since < self._every and self._all_have_last(session)
        if agree.broadcast_from_rank_0(is_small):
            session.begin()
            changes = changes_of(at_rank_0(tensors, observe), self._last)
            found = in_buckets(
                changes, self._bucket_bytes, lambda of: (of.of.name, of.of.dtype, of.gaps.nbytes + of.bits.nbytes)
            )
            post_in_turn(session, (self._request(session, bucket) for bucket in found))
            session.end(version)
        else:
            self._num_since = 0
            self._full.send(session, tensors, version, partial(self._keep, observe))
        self._num_since += 1
        self._version = version

    def participate(self, tensors: Iterable[NamedTensor]) -> None:
        """Takes part in `send`, in the way that rank 0 has chosen."""
        if agree.broadcast_from_rank_0(False):
            super().participate(tensors)
        else:
            self._full.participate(tensors)

    def close(self, session: SyncSession | None = None) -> None:
        """Releases the resources of the transport of all weights."""
        self._full.close(session)

    def _all_have_last(self, session: SyncSession) -> bool:
        """Returns whether all servers hold the last sync's weights.

        The engine knows which ones have failed or released their memory. An external server that was restarted between
        two checks of its health reports another version.
        """
        if not session.servers or any(server.version is None for server in session.servers):
            return False
        return all(found == self._version for found in session.versions().values())

    def _keep(self, observe: Observe | None, tensors: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
        for name, tensor in tensors if observe is None else observe(tensors):
            kept = self._last.setdefault(name, torch.empty(tensor.shape, dtype=tensor.dtype))
            kept.copy_(tensor.detach())
            yield name, tensor

    def _request(self, session: SyncSession, bucket: Sequence[Change]) -> dict[str, Any]:
        packed = pack(bucket)
        session.num_bytes += sum(tensor.nbytes for _, tensor in packed)
        content = base64.b64encode(pickle.dumps(packed)).decode()
        return {"serialized_named_tensors": [content] * self._tp_size, "load_format": NAME, "flush_cache": False}


def changes_of(tensors: Iterable[NamedTensor], last: dict[str, Tensor]) -> Iterator[Change]:
    """Yields the changes of weights since the last sync, and writes them into `last`, its weights by name.

    Elements are compared by their bits: −0 replaces 0, and a NaN that stays is no change.
    """
    for name, tensor in tensors:
        dtype = BITS[tensor.element_size()]
        new, old = tensor.detach().flatten().view(dtype), last[name].view(-1).view(dtype)
        places = (new != old.to(new.device)).nonzero().flatten()
        if not len(places) and any(part in name for part in SENT_TOGETHER):
            places = places.new_zeros(1)  # an element that has not changed, because another of them may have
        if len(places):
            bits = new[places].cpu()
            old[places.cpu()] = bits
            gaps = _gaps(places) if len(places) < len(new) else torch.empty(0)
            yield Change(Entry(name, tuple(tensor.shape), tensor.dtype), gaps, bits)


def _gaps(places: Tensor) -> Tensor:
    gaps = places.diff(prepend=places.new_zeros(1))
    largest = int(gaps.max())
    return gaps.to(next(dtype for dtype in _GAPS if largest <= torch.iinfo(dtype).max)).cpu()


def pack(changes: Sequence[Change]) -> list[NamedTensor]:
    """Returns changes as the two tensors that the servers' loader takes: see `unpack` there."""
    from isal import isal_zlib  # a host that runs servers alone does without it

    table = [
        [of.name, of.shape, _name(of.dtype), len(bits), _name(gaps.dtype) if len(gaps) else ""]
        for of, gaps, bits in changes
    ]
    body = torch.cat([part.view(torch.uint8) for change in changes for part in (change.gaps, change.bits)])
    packed = {"table": json.dumps(table).encode(), "body": isal_zlib.compress(body.numpy(), 1)}
    return [(name, torch.frombuffer(bytearray(content), dtype=torch.uint8)) for name, content in packed.items()]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
