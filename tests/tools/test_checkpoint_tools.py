"""The programs that handle checkpoints, as a user starts them."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.forking import run_python
from tests.policy import tiny_policy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMPARE = ROOT / "tools" / "compare_log_probs.py"


def run(*arguments):
    return run_python(*map(str, arguments), folder=ROOT, timeout=240)


def convert(source, destination, to, *options):
    return run("-m", "megatron_sspo", "convert", source, destination, "--to", to, *options)


def compare_log_probs(*arguments):
    return run(COMPARE, *arguments)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A Hugging Face folder with a tokenizer, its Megatron checkpoint, and the folder converted back."""
    root = tmp_path_factory.mktemp("tools")
    tiny_policy.save("moe", root / "hf")
    done = convert(root / "hf", root / "megatron", "megatron")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{root / 'megatron'}: a Megatron checkpoint of ")
    done = convert(root / "megatron", root / "back", "hf")
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize("model", ["hf", "megatron"])
def test_log_probs(root, tmp_path, model):
    (tmp_path / "text").write_text(" ".join(f"w{i}" for i in range(2, 90)))
    done = compare_log_probs(root / model, "--hf", root / "hf", "--text", tmp_path / "text")
    assert done.returncode == 0 and done.stdout.startswith("87 tokens: |Δ log π| mean "), done.stdout + done.stderr


def test_log_probs_of_another_model(root, tmp_path):
    convert(root / "megatron", tmp_path / "other", "hf")
    content = load_file(tmp_path / "other" / "model.safetensors")
    content["model.norm.weight"] *= 1.5
    save_file(content, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "text").write_text(" ".join(f"w{i}" for i in range(2, 90)))
    done = compare_log_probs(root / "megatron", "--hf", tmp_path / "other", "--text", tmp_path / "text")
    assert done.returncode == 1, done.stdout
    done = compare_log_probs(root / "hf", "--text", tmp_path / "nothing")
    assert done.returncode == 2 and "Traceback" not in done.stderr
