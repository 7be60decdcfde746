"""A whole run on one GPU: `examples/tiny_moe.py` with the embedded engine, in bfloat16, continued from a checkpoint."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "examples" / "tiny_moe.py"
FIELDS = {
    "parallel.data": 1,
    "parallel.expert": 1,
    "model.dtype": "bfloat16",
    "num_updates": 4,
    "warm_start.updates": 10,
    "evaluation.every": 4,
    "checkpoint_every": 2,
    "name": "run",
}


def train(folder, *arguments, **fields):
    changes = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in fields.items()]
    options = [option for change in changes for option in ("--set", change)]
    command = [sys.executable, "-m", "megatron_sspo", "train", str(RECIPE), *options, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.timeout(1100)
def test_a_run_is_continued(tmp_path):
    train(tmp_path, "--profile", "2", **FIELDS, output=str(tmp_path))
    train(tmp_path, "--resume", str(tmp_path / "run"), **(FIELDS | {"num_updates": 6}), output=str(tmp_path))
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    for line in metrics:
        assert line["policy/grad_norm"] > 0
        assert line["engine/log_prob_difference_mean"] < 0.02  # the engine computes in float32
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
