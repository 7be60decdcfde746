"""Weights through CUDA IPC: another process opens the handle of a bucket and reads the same bytes."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from megatron_sspo.rollout.weight_sync.ipc import ipc_message
from megatron_sspo.rollout.weight_sync.tensor import flatten


def test_another_process_reads_a_bucket(device):
    if device.type != "cuda":
        pytest.skip("CPUs have no such handles")
    tensors = [("a", torch.randn(1000, 3, device=device)), ("b", torch.randn(77, device=device).bfloat16())]
    flat, metadata = flatten(tensors)
    torch.cuda.synchronize()
    message = ipc_message(flat, metadata, torch.multiprocessing.reductions.reduce_tensor)
    reader = Path(__file__).with_name("ipc_reader.py")
    done = subprocess.run([sys.executable, str(reader)], input=message, capture_output=True, text=True, timeout=120)
    expected = hashlib.sha256(flat.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
    assert done.stdout.split() == [expected, "2"], done.stderr[-2000:]
