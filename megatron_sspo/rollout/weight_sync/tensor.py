"""Weight sync in the body of requests, for few or nearby servers."""

import base64
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from megatron_sspo.rollout.weight_sync.session import NamedTensor, Observe, SyncSession, Transport, at_rank_0, buckets

_ALIGNMENT = 16  # bytes


class TensorTransport(Transport):
    """Sends tensors in buckets, flattened to bytes. The next bucket is gathered while one is being sent."""

    def __init__(self, *, bucket_bytes: int, tp_size: int = 1) -> None:
        self._bucket_bytes, self._tp_size = bucket_bytes, tp_size

    def send(
        self, session: SyncSession, tensors: Iterable[NamedTensor], version: str, observe: Observe | None = None
    ) -> None:
        """Replaces all weights of the session's servers."""
        session.begin()
        post_in_turn(session, self._requests(session, at_rank_0(tensors, observe)))
        session.end(version)

    def _requests(self, session: SyncSession, tensors: Iterable[NamedTensor]) -> Iterator[dict[str, Any]]:
        for bucket in buckets(tensors, self._bucket_bytes):
            session.num_bytes += sum(tensor.nbytes for _, tensor in bucket)
            # SGLang 0.5.23 takes a JSON body, whose field `serialized_named_tensors` it decodes from base64
            # (`Base64Bytes` in managers/io_struct.py), and every rank reads its own entry of that list.
            yield bucket_request([base64.b64encode(serialize(bucket)).decode()] * self._tp_size)


def post_in_turn(session: SyncSession, contents: Iterable[dict[str, Any]]) -> None:
    """Makes one request with weights after the other. The content of the next is made while one is answered."""
    request = None
    for content in contents:
        if request is not None:
            session.finish(request)
        request = session.start("/update_weights_from_tensor", content)
    if request is not None:
        session.finish(request)


def bucket_request(of_ranks: Sequence[str]) -> dict[str, Any]:
    """Returns the content of a request with a bucket, in the form of `serialize` for each rank of a server."""
    return {"serialized_named_tensors": of_ranks, "load_format": "flattened_bucket", "flush_cache": False}


def serialize(bucket: Sequence[NamedTensor]) -> bytes:
    """Returns the body of SGLang's `FlattenedTensorBucket`: a pickle of the bytes and of each tensor's metadata.

    SGLang's class of the metadata is named in the pickle and not imported, because the trainer has no SGLang.
    """
    flat, metadata = flatten(bucket)
    return with_sglang_class_name(pickle.dumps({"metadata": metadata, "flattened_tensor": flat}, protocol=2))


def flatten(bucket: Sequence[NamedTensor]) -> tuple[torch.Tensor, "list[_Metadata]"]:
    """Returns the bytes of the tensors, concatenated on their device, and where each tensor is in them."""
    metadata, size = [], 0
    for name, tensor in bucket:
        start = -(-size // _ALIGNMENT) * _ALIGNMENT  # the receiver views the bytes in place
        size = start + tensor.nbytes
        metadata.append(_Metadata(name, tensor.shape, tensor.dtype, start, size, tensor.nbytes))
    flat = torch.zeros(size, dtype=torch.uint8, device=bucket[0][1].device)
    for (_, tensor), entry in zip(bucket, metadata, strict=True):
        flat[entry.start_idx : entry.end_idx] = tensor.reshape(-1).view(torch.uint8)
    return flat, metadata


def with_sglang_class_name(pickled: bytes) -> bytes:
    """Replaces our class by SGLang's in a pickle; protocol 2 writes a class name as text at its first use."""
    return pickled.replace(_OURS, _THEIRS, 1)


class _Metadata:
    """Stands for `sglang.srt.weight_sync.tensor_bucket.FlattenedTensorMetadata`."""

    def __init__(
        self, name: str, shape: torch.Size, dtype: torch.dtype, start_idx: int, end_idx: int, numel: int
    ) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.start_idx, self.end_idx, self.numel = start_idx, end_idx, numel


_OURS = f"c{_Metadata.__module__}\n{_Metadata.__qualname__}\n".encode()
_THEIRS = b"csglang.srt.weight_sync.tensor_bucket\nFlattenedTensorMetadata\n"
