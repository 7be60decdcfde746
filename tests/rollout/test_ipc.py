"""Handles of GPU memory, with stand-ins for CUDA and for the other ranks."""

import pytest
import torch
import torch.distributed as dist

from megatron_sspo.processes import agree
from megatron_sspo.rollout.weight_sync import ipc
from megatron_sspo.rollout.weight_sync.ipc import IpcTransport


@pytest.fixture
def handles(monkeypatch):
    """The sizes of the memory for which this process makes a handle. In place of a GPU's id it has the name "cpu"."""
    made = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(ipc, "ipc_message", lambda flat, *_: made.append(len(flat)) or "handle")
    return made


@pytest.mark.parametrize(
    ("devices", "gpus", "expected"),
    [
        (("GPU-0",), ["GPU-0", "cpu"], []),
        (("GPU-0", "cpu"), ["GPU-0", "cpu"], [8]),
        (("cpu",), ["cpu", "cpu"], []),  # rank 0 is on the same GPU
    ],
)
def test_only_the_first_rank_on_a_gpu_with_a_server_makes_a_handle(handles, monkeypatch, devices, gpus, expected):
    """torch keeps the memory of a handle that nobody opens: the weights of every sync would stay on that GPU."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(agree, "broadcast_from_rank_0", lambda _: devices)
    monkeypatch.setattr(agree, "all_gather_objects", lambda mine: gpus if mine in gpus else [None, mine])
    monkeypatch.setattr(agree, "barrier", lambda: None)
    IpcTransport(bucket_bytes=8).participate([("a", torch.ones(2))])
    assert handles == expected
