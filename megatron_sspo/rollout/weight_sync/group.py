"""A process group of one trainer process and all ranks of all servers: NCCL on GPUs, else gloo."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Backend, distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, _new_process_group_helper, _world

from megatron_sspo.processes import agree
from megatron_sspo.processes.ports import check_address
from megatron_sspo.processes.surroundings import environment_with

_TIMEOUT = timedelta(seconds=300)  # longer than the timeouts of a group's work
_POLL_SECONDS = 0.002  # between two checks of a broadcast on a GPU
# What torch reads when it makes a group of NCCL. By default its watchdog ends this process if NCCL loses a server.
_WITHOUT_NCCL_WATCHDOG = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}


def backend() -> str:
    """Returns the backend of the groups."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def device() -> torch.device:
    """Returns the device of tensors that the groups send."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def open_store(address: str) -> Any:
    """Opens a store through which a group's members find each other, at an address of this machine (else UserError)."""
    check_address(address)
    return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        address, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT
    )


def join(address: str, port: int, size: int, name: str) -> Any:
    """Joins a group of `size` members as its rank 0, by the store of the trainer's rank 0, as SGLang's servers do.

    torch.distributed has no public function for a group with processes outside of the default one.
    """
    # other ranks reach the machine of rank 0 at MASTER_ADDR, which servers may not be able to reach
    host = address if agree.is_main() else os.environ.get("MASTER_ADDR", address)
    store = dist.TCPStore(host, port, size, is_master=False, timeout=_TIMEOUT)  # pyright: ignore[reportPrivateImportUsage]
    make: Callable[..., Any] = _new_process_group_helper
    with environment_with(_WITHOUT_NCCL_WATCHDOG):
        group, _ = make(size, 0, [], Backend(backend()), PrefixStore(name, store), group_name=name, timeout=_TIMEOUT)
    _world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group


def broadcast(flat: torch.Tensor, ready: Any, group: Any) -> None:
    """Broadcasts from rank 0, and returns when the data has arrived. It ends with an error if the group is aborted.

    On a GPU the tensor has its content after the event `ready`.
    """
    if ready is None:
        dist.broadcast(flat, src=0, group=group)
        return
    torch.cuda.set_device(flat.device)  # a thread begins with the first GPU
    # a stream of its own: on the default one the broadcast would wait for the next bucket, which is gathered there
    with torch.cuda.stream(torch.cuda.Stream(flat.device)):
        ready.wait()
        work: Any = dist.broadcast(flat, src=0, group=group, async_op=True)
        while not work.is_completed():  # NCCL's wait() only makes a stream wait
            time.sleep(_POLL_SECONDS)
        work.wait()


def abort(group: Any) -> None:
    """Ends a group's collectives, although other members may be dead, and forgets the group.

    Only NCCL can do this. A collective of gloo ends by itself, with the connection or at the group's timeout, and
    destroying the group does not wait for it.
    """
    if backend() == "nccl":
        distributed_c10d._abort_process_group(group)
    else:
        dist.destroy_process_group(group)
