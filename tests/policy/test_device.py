"""The GPU of a trainer process. There is none here: torch's answers are replaced."""

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.policy.with_cuda.device import local_device


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
