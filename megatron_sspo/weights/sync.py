"""From a stream of Hugging Face-named tensors into SGLang's servers."""

import asyncio
import base64
import pickle
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

Named = tuple[str, torch.Tensor]
_SECONDS = 600.0  # for one request
_ALIGNMENT = 16  # bytes


class Server(Protocol):
    """What a transport asks of a client."""

    async def post(self, path: str, content: dict[str, Any], *, seconds: float) -> dict[str, Any]: ...


class TensorTransport:
    """Buckets of tensors, flattened to bytes, in the body of a request: for servers on the same machine.

    While one bucket is on its way the next is gathered.

    Args:
        servers: who gets them, each all of them.
        run: runs a coroutine to its end.
        bucket_bytes: of tensors in one request, unless one tensor is larger.
    """

    def __init__(
        self, servers: Sequence[Server], run: Callable[[Coroutine[Any, Any, Any]], Any], *, bucket_bytes: int
    ) -> None:
        self._servers, self._run, self._bucket_bytes = servers, run, bucket_bytes

    def send(self, tensors: Iterable[Named], version: int) -> None:
        """Replaces all weights of all servers.

        Raises:
            ServerError: a server did not take them.
        """
        self._run(self._all("/begin_weight_update", {}))
        for bucket in buckets(tensors, self._bucket_bytes):
            content = {
                "serialized_named_tensors": [base64.b64encode(serialize(bucket)).decode()],
                "load_format": "flattened_bucket",
                "flush_cache": False,
            }
            self._run(self._all("/update_weights_from_tensor", content))
        self._run(self._all("/end_weight_update", {}))
        self._run(self._all("/flush_cache", {}))
        content = {"new_version": str(version), "abort_all_requests": False}
        self._run(self._all("/update_weight_version", content))

    async def _all(self, path: str, content: dict[str, Any]) -> None:
        await asyncio.gather(*(server.post(path, content, seconds=_SECONDS) for server in self._servers))


def buckets(tensors: Iterable[Named], num_bytes: int) -> Iterator[list[Named]]:
    """The stream, in lists of at least `num_bytes` each, the last aside. The tensors are on the host."""
    bucket: list[Named] = []
    filled = 0
    for name, tensor in tensors:
        on_host = tensor.detach().cpu()
        bucket.append((name, on_host.clone() if on_host.data_ptr() == tensor.data_ptr() else on_host))
        filled += tensor.nbytes
        if filled >= num_bytes:
            yield bucket
            bucket, filled = [], 0
    if bucket:
        yield bucket


def serialize(bucket: Sequence[Named]) -> bytes:
    """What SGLang's `FlattenedTensorBucket` is sent as: a pickle of the bytes and of where each tensor is in them.

    SGLang's class for the latter is named in it and not imported: the trainer has no SGLang.
    """
    metadata, size = [], 0
    for name, tensor in bucket:
        start = -(-size // _ALIGNMENT) * _ALIGNMENT  # the receiver views the bytes in place
        size = start + tensor.nbytes
        metadata.append(_Metadata(name, tensor.shape, tensor.dtype, start, size, tensor.nbytes))
    flat = torch.zeros(size, dtype=torch.uint8)
    for (_, tensor), entry in zip(bucket, metadata, strict=True):
        flat[entry.start_idx : entry.end_idx] = tensor.reshape(-1).view(torch.uint8)
    # protocol 2 writes the name of a class as text, once, and here before the bytes of the tensors
    pickled = pickle.dumps({"metadata": metadata, "flattened_tensor": flat}, protocol=2)
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
