"""Fixtures for tests of several ranks: one GPU for each where there are enough, otherwise several on one.

Without a GPU the ranks talk by gloo on CPUs, in the same code.
"""

import os

import pytest
import torch

from tests.policy.conftest import batches, folders, measured

__all__ = ["batches", "folders", "measured"]
RANKS = int(os.environ["RANKS"])  # the most that a test may start
# Before the first process is started, and for all of them: NCCL of several ranks on one GPU, over the loopback.
ON_ONE_GPU = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",  # its memory is of one rank on each GPU
    "NCCL_CUMEM_ENABLE": "0",  # as in SGLang's servers
    "NCCL_MAX_CTAS": "2",  # the kernels of all ranks wait for each other, so none may fill the GPU
}
if torch.cuda.is_available() and torch.cuda.device_count() < RANKS:
    for name, value in ON_ONE_GPU.items():
        os.environ.setdefault(name, value)
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # looking for a GPU leaves CUDA unused, for forks


@pytest.fixture(scope="session")
def at_once():
    """Each layout has processes of its own, so that one that hangs takes no other with it."""
    return 1


@pytest.fixture
def note(note):
    """note(layout, quantity, number): notes a distance."""
    return lambda _, quantity, number: note(**{quantity.replace(" ", "_"): number})
