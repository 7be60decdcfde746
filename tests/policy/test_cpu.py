"""The patches that let Megatron-Core run on CPU do not change the rest of torch."""

import subprocess
import sys

import pytest
import torch

import megatron_sspo.policy  # noqa: F401

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA nothing of torch is touched")


def test_device_context_still_applies_to_factories():
    program = "import megatron_sspo.policy, torch\nwith torch.device('meta'): assert torch.arange(3).is_meta"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_cuda_device_means_cpu():
    for tensor in (torch.zeros(2, device="cuda"), torch.empty(2, device=torch.device("cuda", 0)), torch.ones(2).cuda()):
        assert tensor.device == torch.device("cpu")
    assert torch.ones(2).to("cuda").device == torch.ones(2).to(device="cuda:0").device == torch.device("cpu")
    assert torch.ones(2).to(torch.float64).dtype == torch.float64
    assert torch.ones(2).type() == "torch.cuda.FloatTensor"
    assert not torch.cuda.is_available()
