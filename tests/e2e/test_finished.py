"""The end of a run: repeating it gives the same model, and a closed standard output does not end a run."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_sspo.run_folder.metrics_files import EVALUATIONS, read
from tests.e2e.conftest import ROOT, Workshop

pytestmark = pytest.mark.slow


def digest(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def test_a_finished_run_is_resumed_to_the_same_end(whole_run, tmp_path: Path) -> None:
    """Only one of several processes has read that the last evaluation is done, which matters where it is repeated."""
    reference, layout = whole_run
    run = Path(shutil.copytree(reference.folder / "run", tmp_path / "run"))
    before = digest(run)
    repeated = ("evaluations.jsonl", "model")
    command = ("train", f"{reference.recipe}:{layout}", "--resume", str(run))
    for missing in ((), ("model",), repeated) if layout == "recipe" else (repeated,):
        for name in missing:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
        done = reference.run(*command, timeout=120)
        assert done.returncode == 0, done.stderr
        assert digest(run) == before
        assert read(run / EVALUATIONS)[-1]["update"] == 6
    if layout == "recipe":
        done = reference.run(*command, "--set", "evaluation.samples=4", timeout=120)
        assert done.returncode == 0, done.stderr
        assert "sums/avg@4" in read(run / EVALUATIONS)[-1]


def test_a_closed_output_does_not_end_a_run(workshop: Workshop) -> None:
    command = f"{sys.executable} -m megatron_sspo train {workshop.recipe}:bare --set num_updates=2"
    shell = f"{command} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"
    subprocess.run(["bash", "-c", shell], cwd=ROOT, check=True, timeout=240)
    assert (workshop.folder / "run" / "model").exists()
    assert "update 2  reward" in (workshop.folder / "run" / "log.txt").read_text()
