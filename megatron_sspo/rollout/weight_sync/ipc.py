"""Weight sync through GPU memory that trainer and servers share: requests carry CUDA IPC handles instead of bytes."""

import base64
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from megatron_sspo.errors import UserError
from megatron_sspo.processes import agree
from megatron_sspo.rollout.weight_sync import group as groups
from megatron_sspo.rollout.weight_sync.session import NamedTensor, Observe, SyncSession, Transport, buckets
from megatron_sspo.rollout.weight_sync.tensor import bucket_request, flatten, with_sglang_class_name


class IpcTransport(Transport):
    """Flattens tensors in buckets on every trainer process's GPU; each server rank reads the bucket on its own GPU.

    A collective of all trainer processes. It has not been run with a server; `tests/gpu/test_ipc.py` opens a handle.

    Args:
        bucket_bytes: the number of bytes at which a bucket is complete; every GPU needs about that much memory.
    """

    def __init__(self, *, bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes

    def send(
        self, session: SyncSession, tensors: Iterable[NamedTensor], version: str, observe: Observe | None = None
    ) -> None:
        """Replaces all weights of the session's servers, whose keys in the session have a list of GPU ids, `devices`.

        Raises:
            UserError: no trainer process is on a server's GPU.
        """
        session.begin()
        stream = tensors if observe is None else observe(tensors)  # every rank gathers all weights on its own GPU
        for bucket in buckets(stream, self._bucket_bytes, device=groups.device()):
            session.num_bytes += sum(tensor.nbytes for _, tensor in bucket)
            flat, handles = _share(bucket, [device for server in session.servers for device in server.devices])
            contents = {
                server: bucket_request(handles_of(client.url, server.devices, handles))
                for server, client in session.servers.items()
            }
            session.finish(session.start_each("/update_weights_from_tensor", contents))
            _release(flat)
        session.end(version)

    def participate(self, tensors: Iterable[NamedTensor]) -> None:
        """Shares this process's copy of each bucket while rank 0 sends. A collective."""
        for bucket in buckets(tensors, self._bucket_bytes, device=groups.device()):
            flat, _ = _share(bucket)
            _release(flat)


def _share(bucket: Sequence[NamedTensor], devices: Sequence[str] = ()) -> tuple[torch.Tensor, dict[str, str]]:
    """Returns the bucket in this GPU's memory, and the handles by GPU id of the GPUs that have a server. A collective.

    A GPU without a server, of whose ids rank 0 gives the `devices`, makes no handle, nor do several ranks on one GPU:
    torch never frees memory whose handle was made and not opened.
    """
    flat, metadata = flatten(bucket)
    gpus = agree.all_gather_objects(_gpu_id(flat))
    rank, handle = dist.get_rank() if dist.is_initialized() else 0, None
    if gpus[rank] in agree.broadcast_from_rank_0(devices) and gpus.index(gpus[rank]) == rank:
        torch.cuda.synchronize()
        handle = ipc_message(flat, metadata, torch.multiprocessing.reductions.reduce_tensor)
    handles = agree.all_gather_objects(handle)
    return flat, {gpu: handle for gpu, handle in zip(gpus, handles, strict=True) if handle is not None}


def handles_of(url: str, devices: Sequence[str], handles: dict[str, str]) -> list[str]:
    """Returns the handles for the ranks of a server, one per GPU."""
    missing = [device for device in devices if device not in handles]
    if missing or not devices:
        raise UserError(
            f"the server {url} is on GPUs without a trainer process ({', '.join(missing) or 'it reports no GPU ids'}): "
            'the transport "ipc" needs servers on the trainer\'s own GPUs, so choose another'
        )
    return [handles[device] for device in devices]


def ipc_message(flat: torch.Tensor, metadata: list[Any], reduce: Callable[[torch.Tensor], tuple[Any, tuple]]) -> str:
    """Returns the body of SGLang's `FlattenedTensorBucket`, with a handle in place of the bytes.

    SGLang finds the device by its id, because its number differs between processes that see different GPUs. `reduce` is
    torch's function from a tensor to (function, arguments), which rebuild it in another process.
    """
    _, arguments = reduce(flat)
    shared = _Shared((*arguments[:_DEVICE], _gpu_id(flat), *arguments[_DEVICE + 1 :]))
    pickled = pickle.dumps({"metadata": metadata, "flattened_tensor": shared}, protocol=2)
    return base64.b64encode(with_sglang_class_name(pickled).replace(_OURS, _THEIRS, 1)).decode()


_DEVICE = 6  # the position of the device among the arguments of torch's rebuild_cuda_tensor


class _Shared:
    """A tensor, pickled as a call of SGLang's function that opens its handle."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _open, self._arguments


def _open(*_: Any) -> None:
    """Stands for `sglang.srt.utils.patch_torch._rebuild_cuda_tensor_modified`."""


_OURS = f"c{_open.__module__}\n{_open.__qualname__}\n".encode()
_THEIRS = b"csglang.srt.utils.patch_torch\n_rebuild_cuda_tensor_modified\n"


def _gpu_id(flat: torch.Tensor) -> str:
    return str(torch.cuda.get_device_properties(flat.device).uuid) if flat.is_cuda else str(flat.device)


def _release(flat: torch.Tensor) -> None:
    """Frees the bucket when all servers have read it; no process may free its memory earlier. A collective.

    The barrier is one of the hosts: a rank that waited by NCCL would occupy the GPU on which its server loads weights.
    """
    agree.barrier()
    del flat
    torch.cuda.ipc_collect()
