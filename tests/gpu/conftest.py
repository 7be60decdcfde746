"""Fixtures for tests that compare a trainer process on its GPU with Transformers on the CPU: `make test-gpu`.

The tests are for the first node of a cluster. They need one GPU, and use Transformer Engine if it is installed. Without
a GPU, `test_there_is_a_gpu` fails and the others run on the CPU. `ranks` has the tests of several ranks, for which the
variable RANKS is the most that they may start: `make test-gpu RANKS=4`.
"""

import os
from pathlib import Path

import pytest
import torch

from megatron_sspo.policy.distributed import initialize, shutdown
from megatron_sspo.run import Parallel
from tests.policy import tiny_policy

_NOTED: list[tuple[str, dict[str, float]]] = []  # of the tests so far
collect_ignore = [] if os.environ.get("RANKS") else ["ranks"]
KINDS = ("moe", "dense", "tied", "qwen3", "qwen2", "mixtral")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")


@pytest.fixture(scope="session")
def device():
    yield initialize(Parallel(), seed=0)
    shutdown()


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Kind -> the folder of that tiny model, with weights that bfloat16 holds exactly."""
    root = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        tiny_policy.save(kind, root / kind)
        model = tiny_policy.reference(root / kind)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16())
        model.save_pretrained(root / kind)
    return {kind: root / kind for kind in KINDS}


@pytest.fixture(scope="session")
def batches(folders, tmp_path_factory):
    """Kind -> rollouts whose old log-probs are Transformers' with noise."""
    root = tmp_path_factory.mktemp("batches")
    return {
        kind: tiny_policy.read_batch(tiny_policy.save_batch(kind, "ragged", folders[kind], root / f"{kind}.npz"))
        for kind in KINDS
    }


@pytest.fixture
def note(request):
    """Returns a function that notes a measured error, for the table at the end of the tests' output."""

    def keep(**errors):
        _NOTED.append((request.node.name, errors))
        request.node.user_properties.extend(errors.items())

    return keep


def pytest_terminal_summary(terminalreporter):
    if _NOTED:
        terminalreporter.section("errors")
    for name, errors in _NOTED:
        terminalreporter.write_line("  ".join([f"{kind} {value:.1e}" for kind, value in errors.items()]) + f"  {name}")
