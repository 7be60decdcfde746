"""The loss hook in a training loop that is not ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import own_loop
import pytest
import torch
from launcher import launch

from megatron_sspo.policy.own_loop import pack_rollouts, policy_step

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin_own_loop.py"


@pytest.mark.slow
def test_the_examples_first_gradient_is_the_loops(folders, tmp_path):
    launch(Path(own_loop.__file__), 2, folders["moe"], tmp_path / "result.pt")
    found = torch.load(tmp_path / "result.pt")
    theirs, ours = found["losses"]
    assert theirs == pytest.approx(ours, abs=1e-6) and abs(ours) > 1e-3
    for name, gradient in found["ours"].items():
        difference = float((found["theirs"][name] - gradient).norm() / gradient.norm().clamp(min=1e-12))
        assert difference < 5e-6, f"{name}: {difference}"


@pytest.mark.slow
def test_the_example_runs_on_two_processes():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    norms = [float(norm) for norm in re.findall(r"rank 0 .* gradient norm ([0-9.]+)", done.stdout)]
    assert len(norms) == 5 and norms[-1] < norms[0]


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 80


def test_log_probs_of_another_length_are_refused(device):
    rollout = {"prompt": [1, 2], "response": [3, 4, 5], "advantage": 1.0, "old": [-1.0, -2.0]}
    with pytest.raises(ValueError, match="rollout 0 has 2 values of 'old', and 3 response tokens"):
        pack_rollouts([rollout])


def test_groups_have_to_be_there_first(monkeypatch):
    from megatron.core import parallel_state

    monkeypatch.setattr(parallel_state, "model_parallel_is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="initialize_model_parallel before policy_step"):
        policy_step(lambda *_: None, num_sequences=1, num_microbatches=1, vocab_size=8)
