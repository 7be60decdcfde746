"""A run of adapters, killed and resumed, ends with the same bits, and leaves the adapters and the merged model."""

import pytest

from tests.e2e.test_resume import rows

pytestmark = pytest.mark.slow


def test_a_run_of_adapters(workshop) -> None:
    recipe = f"{workshop.recipe}:adapted"
    done = workshop.run("train", recipe, "--set", "name=whole")
    assert done.returncode == 0, done.stderr
    whole, run = workshop.folder / "whole", workshop.folder / "run"
    workshop.kill_when((run / "checkpoints" / "update-000002").exists, "train", recipe)
    done = workshop.run("train", recipe, "--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert rows(run / "metrics.jsonl") == rows(whole / "metrics.jsonl")
    for file in ("model/model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"):
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file
    done = workshop.run("verify", str(run / "checkpoints" / "update-000003"), str(run / "model"))
    assert done.returncode == 0 and "bitwise equal" in done.stdout, done.stdout + done.stderr
