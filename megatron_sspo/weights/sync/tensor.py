"""Weights in the body of a request: for servers that are few or near."""

import base64
import pickle
from collections.abc import Iterable, Sequence

import torch

from megatron_sspo.weights.sync.session import Named, Session, buckets, consume

_ALIGNMENT = 16  # bytes


class TensorTransport:
    """Buckets of tensors, flattened to bytes. While one is on its way the next is gathered.

    Args:
        bucket_bytes: of tensors in one request, unless one tensor is larger.
        tp_size: tensor-parallel ranks of a server, each of which gets a copy.
    """

    def __init__(self, *, bucket_bytes: int, tp_size: int = 1) -> None:
        self._bucket_bytes, self._tp_size = bucket_bytes, tp_size

    def send(self, session: Session, tensors: Iterable[Named], version: int) -> None:
        """Replaces all weights of the session's servers."""
        session.begin()
        request = None
        for bucket in buckets(tensors, self._bucket_bytes):
            session.num_bytes += sum(tensor.nbytes for _, tensor in bucket)
            text = base64.b64encode(serialize(bucket)).decode()
            content = {
                "serialized_named_tensors": [text] * self._tp_size,
                "load_format": "flattened_bucket",
                "flush_cache": False,
            }
            if request is not None:
                session.finish(request)
            request = session.start("/update_weights_from_tensor", content)
        if request is not None:
            session.finish(request)
        session.end(version)

    def follow(self, tensors: Iterable[Named]) -> None:
        """Nothing but the stream."""
        consume(tensors)

    def close(self) -> None:
        """There is nothing to give back."""


def serialize(bucket: Sequence[Named]) -> bytes:
    """What SGLang's `FlattenedTensorBucket` is sent as: a pickle of the bytes and of where each tensor is in them.

    SGLang's class for the latter is named in it and not imported: the trainer has no SGLang.
    """
    flat, metadata = flatten(bucket)
    return in_sglangs_names(pickle.dumps({"metadata": metadata, "flattened_tensor": flat}, protocol=2))


def flatten(bucket: Sequence[Named]) -> tuple[torch.Tensor, "list[_Metadata]"]:
    """The bytes of the tensors one after the other, on their device, and where each of them is."""
    metadata, size = [], 0
    for name, tensor in bucket:
        start = -(-size // _ALIGNMENT) * _ALIGNMENT  # the receiver views the bytes in place
        size = start + tensor.nbytes
        metadata.append(_Metadata(name, tensor.shape, tensor.dtype, start, size, tensor.nbytes))
    flat = torch.zeros(size, dtype=torch.uint8, device=bucket[0][1].device)
    for (_, tensor), entry in zip(bucket, metadata, strict=True):
        flat[entry.start_idx : entry.end_idx] = tensor.reshape(-1).view(torch.uint8)
    return flat, metadata


def in_sglangs_names(pickled: bytes) -> bytes:
    """A pickle that names SGLang's class in the place of ours: protocol 2 writes a name as text, where it is first."""
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
