"""Weights from two senders to servers on the same GPU: by NCCL, also where one of them is killed, and by `ipc`."""

import json
from pathlib import Path

import pytest
import torch

from tests.policy.launcher import launch
from tests.rollout.test_two_senders import (
    synced,
    test_a_sender_that_dies_in_the_middle,
    test_a_server_that_dies_in_the_middle,
    test_every_server_gets_every_tensor_once_to_the_bit,
)

__all__ = [
    "synced",
    "test_a_sender_that_dies_in_the_middle",
    "test_a_server_that_dies_in_the_middle",
    "test_every_server_gets_every_tensor_once_to_the_bit",
]


def test_a_server_reads_the_memory_of_one_of_two_ranks(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("CPUs have no handles of memory")
    launch(Path(__file__).with_name("ipc_senders.py"), 2, tmp_path / "found.json", seconds=120)
    assert json.loads((tmp_path / "found.json").read_text()) == {"equal": True, "failed": []}
