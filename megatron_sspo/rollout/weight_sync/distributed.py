"""Weight sync by broadcast in a process group of the trainer and all ranks of all servers: NCCL on GPUs, else gloo."""

import secrets
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Backend, distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, _new_process_group_helper, _world

from megatron_sspo.processes.ports import free_port
from megatron_sspo.rollout.weight_sync.bounded import AbandonedWork, run_bounded
from megatron_sspo.rollout.weight_sync.session import NamedTensor, SyncSession, Transport, buckets

# The group's own timeout is longer than those below: after it, NCCL's watchdog would end this process.
_TIMEOUT = timedelta(seconds=300)
_JOIN_SECONDS = 200.0  # for all ranks of all servers to join
_BROADCAST_SECONDS = 120.0  # for a bucket; the first one also connects the GPUs
_ANSWER_SECONDS = 30.0  # for the other servers to notice that the group is lost; then they are restarted
_POLL_SECONDS = 0.002  # between two looks at a broadcast on a GPU


class DistributedTransport(Transport):
    """Broadcasts tensors in buckets, flattened to bytes; rank 0 of the trainer sends.

    The process group is made for the servers of a session and kept as long as they stay the same. If a server fails,
    the group is lost and the other servers miss the rest of the stream. They then leave the session too, and wait for
    another sync. Gloo reports a lost connection, but NCCL would wait for a server that has ended. So the broadcast runs
    in a thread of its own, the requests are watched meanwhile, and the group is aborted when one has failed.

    Args:
        bucket_bytes: the number of bytes at which a bucket is complete.
        tp_size: the number of tensor-parallel ranks of a server.
        address: the address at which the servers reach this host.
    """

    def __init__(self, *, bucket_bytes: int, tp_size: int, address: str = "127.0.0.1") -> None:
        self._bucket_bytes, self._tp_size, self._address = bucket_bytes, tp_size, address
        self._backend = "nccl" if torch.cuda.is_available() else "gloo"
        self._device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
        self._group: Any = None
        self._name = ""
        self._members: list[Any] = []  # the clients that are in the group

    def send(self, session: SyncSession, tensors: Iterable[NamedTensor], version: int) -> None:
        """Replaces all weights of the session's servers."""
        session.begin()
        if session.servers and self._members != list(session.servers.values()):
            self._make_group(session)
        for bucket in buckets(tensors, self._bucket_bytes):
            if session.servers:
                session.num_bytes += sum(tensor.nbytes for _, tensor in bucket)
                self._broadcast(session, bucket)
        session.end(version)

    def close(self) -> None:
        """Leaves the process group."""
        group = self._forget()
        if group is not None:
            dist.destroy_process_group(group)

    def _forget(self) -> Any:
        """Returns the process group, which is not used any more."""
        group, self._group, self._members = self._group, None, []
        return group

    def _abort(self) -> None:
        """Leaves a process group of which a member may be dead, or inside of a broadcast."""
        group = self._forget()
        if group is not None:
            _abort_group(group, self._backend)

    def _broadcast(self, session: SyncSession, bucket: list[NamedTensor]) -> None:
        # sorted by element size: the receiver lays the tensors out without gaps, and each must be aligned
        bucket = sorted(bucket, key=lambda pair: -pair[1].dtype.itemsize)
        flat = torch.cat([tensor.reshape(-1).view(torch.uint8) for _, tensor in bucket]).to(self._device)
        content = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
            "group_name": self._name,
            "load_format": "flattened_bucket",
            "flush_cache": False,
        }
        requests = session.start("/update_weights_from_distributed", content)
        group, seconds = self._group, None
        try:
            run_bounded(lambda: _send(flat, group), has_failed=requests.has_failed, seconds=_BROADCAST_SECONDS)
        except (RuntimeError, AbandonedWork):  # a server has ended or hangs; its request has the error
            self._abort()
            seconds = _ANSWER_SECONDS
        session.finish(requests, seconds=seconds)
        self._check_members(session)

    def _make_group(self, session: SyncSession) -> None:
        """Makes a new group with the servers of the session. Servers cannot use the name of a group twice."""
        self.close()
        self._name = f"weights-{secrets.token_hex(8)}"
        port = free_port(self._address)
        size = 1 + self._tp_size * len(session.servers)
        contents = {
            key: {
                "master_address": self._address,
                "master_port": port,
                "rank_offset": 1 + number * self._tp_size,
                "world_size": size,
                "group_name": self._name,
                "backend": self._backend,
            }
            for number, key in enumerate(session.servers)
        }
        self._members = list(session.servers.values())
        requests = session.start_each("/init_weights_update_group", contents)
        join, seconds = partial(_join, self._address, port, size, self._name, self._backend), None
        try:
            self._group = run_bounded(join, has_failed=requests.has_failed, seconds=_JOIN_SECONDS)
        except (RuntimeError, TimeoutError, AbandonedWork):  # a server has ended; its request has the error
            self._forget()
            seconds = _ANSWER_SECONDS
        session.finish(requests, seconds=seconds)
        self._check_members(session)

    def _check_members(self, session: SyncSession) -> None:
        if self._members != list(session.servers.values()):
            self._abort()
            session.abort_update()


def _send(flat: torch.Tensor, group: Any) -> None:
    """Broadcasts from rank 0, and returns when the data has arrived. It ends with an error if the group is aborted."""
    if flat.is_cuda:
        torch.cuda.set_device(flat.device)  # a thread begins with the first GPU
    work: Any = dist.broadcast(flat, src=0, group=group, async_op=True)
    while flat.is_cuda and not work.is_completed():  # NCCL's wait() only makes a stream wait
        time.sleep(_POLL_SECONDS)
    work.wait()


def _abort_group(group: Any, backend: str) -> None:
    """Ends a group's collectives, although other members may be dead, and forgets the group.

    Only NCCL can do this. A collective of gloo ends by itself, with the connection or at the group's timeout, and gloo
    does not wait for it here. A torch without the function leaves NCCL's to the timeout, too.
    """
    abort = getattr(distributed_c10d, "_abort_process_group", None)
    if backend != "nccl":
        dist.destroy_process_group(group)
    elif abort is not None:
        abort(group)


def _join(address: str, port: int, size: int, name: str, backend: str) -> Any:
    """Joins a process group besides the trainer's own as rank 0, with the functions that SGLang uses.

    torch.distributed has no public function for a group with processes outside of the default one.
    """
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        address, port, size, is_master=True, timeout=_TIMEOUT
    )
    make: Callable[..., Any] = _new_process_group_helper
    group, _ = make(size, 0, [], Backend(backend), PrefixStore(name, store), group_name=name, timeout=_TIMEOUT)
    _world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group
