"""Whole runs of `examples/tiny_moe.py` on several ranks: killed and resumed, in another layout too; a killed rank."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.e2e.test_resume import rows
from tests.gpu.ranks.conftest import RANKS

ROOT = Path(__file__).parents[3]
TINY_MOE = ROOT / "examples" / "tiny_moe.py"
FIELDS = {"num_updates": 4, "warm_start.updates": 4, "evaluation": None, "checkpoint_every": 3, "name": "run"}
FIELDS |= {"rollouts.prompts_per_update": 4, "model.dtype": "float32"}
ONE = {"parallel.data": RANKS // 2, "parallel.tensor": 2, "parallel.sequence": True, "parallel.expert": 2}
OTHER = {"parallel.data": RANKS // 2, "parallel.pipeline": 2, "parallel.expert": RANKS // 2}
SECONDS = 240  # that a command may take


def start(folder, recipe, layout, *arguments, **variables):
    fields = FIELDS | layout | {"output": str(folder)}
    changes = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in fields.items()]
    command = [sys.executable, "-m", "megatron_sspo", "train", str(recipe), *arguments]
    command += [option for change in changes for option in ("--set", change)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **variables,
    }
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    try:
        return process.communicate(timeout=SECONDS)
    finally:
        process.kill()


def train(folder, layout, *arguments):
    process = start(folder, TINY_MOE, layout, *arguments)
    out, err = finish(process)
    assert process.returncode == 0, out[-2000:] + err[-3000:]
    assert (folder / "run" / "model" / "model.safetensors").exists()
    return rows(folder / "run" / "metrics.jsonl")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run that was killed after its checkpoint in the middle of a cycle, whose batch is in it."""
    folder = tmp_path_factory.mktemp("killed")
    process = start(folder, TINY_MOE, ONE)
    deadline = time.monotonic() + SECONDS
    while not (folder / "run" / "checkpoints" / "update-000003").exists():
        assert process.poll() is None and time.monotonic() < deadline, finish(process)
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "run" / "model").exists()
    return folder


@pytest.fixture(scope="module")
def resumed(killed, tmp_path_factory):
    """The rows of that run, resumed in the same layout."""
    folder = tmp_path_factory.mktemp("resumed")
    shutil.copytree(killed / "run", folder / "run")
    return train(folder, ONE, "--resume", str(folder / "run"))


def test_a_run_that_was_killed_is_resumed(resumed):
    assert [json.loads(row)["update"] for row in resumed] == [1, 2, 3, 4]
    assert all(json.loads(row)["policy/grad_norm"] > 0 for row in resumed)


def test_it_is_resumed_in_another_layout(killed, resumed, tmp_path, note):
    """The batch of the next update is in the checkpoint, so layouts differ by rounding alone."""
    shutil.copytree(killed / "run", tmp_path / "run")
    found = [json.loads(row) for row in train(tmp_path, OTHER, "--resume", str(tmp_path / "run"))]
    expected = [json.loads(row) for row in resumed]
    assert found[:3] == expected[:3]
    for name in ("reward/mean", "policy/loss", "policy/grad_norm", "policy/learning_rate"):
        note("", name, abs(found[3][name] - expected[3][name]))
        assert found[3][name] == pytest.approx(expected[3][name], rel=1e-3, abs=1e-5), name


def test_a_run_that_was_not_interrupted_has_the_same_numbers(resumed, tmp_path, note):
    """Compares to the bit. A GPU may add in another order each time, and one other token changes all that follows."""
    found = train(tmp_path, ONE)
    equal = [one == other for one, other in zip(found, resumed, strict=True)]
    note("", "updates equal to the bit", equal.index(False) if False in equal else len(equal))
    assert all(equal) or torch.cuda.is_available()


@pytest.mark.parametrize("where", ["forward", "all_reduce", "sync"])
def test_a_killed_rank_ends_the_run_with_one_sentence(tmp_path, where):
    process = start(tmp_path, Path(__file__).with_name("fatal.py"), ONE, FATAL=where)
    out, err = finish(process)
    assert process.returncode == 128 + signal.SIGKILL, out[-2000:] + err[-3000:]
    said = [line for line in err.splitlines() if line.startswith("megatron-sspo: ")]  # libraries for GPUs say more
    assert said == ["megatron-sspo: process 1 was killed by SIGKILL; the others are stopped"], err
    assert "Traceback" not in err
