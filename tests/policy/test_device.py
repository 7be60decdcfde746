"""The GPU of a trainer process. There is none here: torch's answers are replaced."""

import contextlib
import os
from types import SimpleNamespace

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.policy.with_cuda.device import local_device
from megatron_sspo.preflight.ranks import _check_own_gpus
from megatron_sspo.preflight.resources import memory_of_rank
from megatron_sspo.processes import shared_gpus


@pytest.fixture
def gpus(monkeypatch):
    """gpus(count, local_rank, visible): a process that sees so many GPUs."""

    def pretend(count, local_rank=None, visible=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        for name, value in (("LOCAL_RANK", local_rank), ("CUDA_VISIBLE_DEVICES", visible)):
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, str(value))

    return pretend


@pytest.mark.parametrize(
    ("count", "local_rank", "device"),
    [
        (0, 3, torch.device("cpu")),
        (8, None, torch.device("cuda", 0)),
        (8, 7, torch.device("cuda", 7)),
        (1, 0, torch.device("cuda", 0)),
        (1, 5, torch.device("cuda", 0)),  # the launcher binds one GPU to each process
    ],
)
def test_the_gpu_of_a_process(gpus, count, local_rank, device):
    gpus(count, local_rank)
    assert local_device() == device


@pytest.mark.parametrize("visible", [None, "2,3"])
def test_more_processes_than_gpus(gpus, visible):
    gpus(2, 2, visible)
    with pytest.raises(
        UserError, match=r"LOCAL_RANK is 2, and this process sees 2 GPUs.*at most 2 processes"
    ) as raised:
        local_device()
    assert (visible is not None) == ("CUDA_VISIBLE_DEVICES=2,3" in str(raised.value))


def test_two_ranks_on_one_gpu():
    _check_own_gpus([("", ""), ("", "")])
    _check_own_gpus([("GPU-1", ""), ("GPU-2", "")])
    with pytest.raises(UserError, match="ranks 0 and 2 are on the same GPU, GPU-1"):
        _check_own_gpus([("GPU-1", ""), ("GPU-2", ""), ("GPU-1", "")])


@pytest.mark.parametrize(
    ("release", "variables", "is_accepted"),
    [
        ((2, 30, 0), {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, True),
        ((2, 28, 9), {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, True),  # it gets hosts of its own
        ((2, 28, 9), {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_HOSTID": "node"}, False),  # one name for all
        ((2, 30, 0), {"NCCL_HOSTID": "node"}, False),
        ((2, 28, 9), {"NCCL_HOSTID": "node-{}"}, True),
        ((2, 30, 0), {}, False),
    ],
)
def test_ranks_share_a_gpu_where_nccl_accepts_them(gpus, monkeypatch, release, variables, is_accepted):
    gpus(1)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: release)
    places = []
    for rank in range(2):
        monkeypatch.setattr(os, "environ", {name: value.format(rank) for name, value in variables.items()})
        shared_gpus.name_host(rank)
        places.append(shared_gpus.place_of(rank))
        assert shared_gpus.are_meant() == bool(variables)
    with contextlib.nullcontext() if is_accepted else pytest.raises(UserError, match="ranks 0 and 1 are"):
        _check_own_gpus([("GPU-1", place) for place in places])


def test_more_ranks_than_gpus_are_dealt_out_where_they_may_share(gpus, monkeypatch):
    gpus(2, 3)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert local_device() == torch.device("cuda", 1)


def test_the_ranks_of_a_gpu_share_its_memory(gpus, monkeypatch):
    gpus(1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    gpu = SimpleNamespace(total_memory=1200, name="H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    assert memory_of_rank(1) == (1200, "the H200")
    assert memory_of_rank(4) == (300, "its share of the H200")
