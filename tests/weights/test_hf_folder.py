"""Hugging Face folders: reading slices, damage of every kind, and writing."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from megatron_sspo.errors import UserError
from megatron_sspo.preflight.resources import read_model_config
from megatron_sspo.run import Model
from megatron_sspo.weights.formats.hf_folder import HFFolder, write_folder
from megatron_sspo.weights.formats.random import write_random_weights
from tests.test_run_check import RUN
from tests.weights.tiny_checkpoints import KINDS, logits, save


@pytest.fixture
def sharded(tmp_path):
    """A checkpoint in several files, which tests may damage."""
    save("llama", tmp_path / "sharded", max_shard_size="10KB")
    return tmp_path / "sharded"


def stream(folder):
    return ((name, folder.read(name)) for name in folder.shapes())


def test_reads_what_transformers_wrote(sharded):
    tensors = {}
    for file in sharded.glob("*.safetensors"):
        tensors |= load_file(file)
    with HFFolder(sharded) as folder:
        assert len(folder.files) > 2
        assert folder.shapes() == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        assert set(folder.dtypes().values()) == {torch.float32}
        for name, tensor in tensors.items():
            assert torch.equal(folder.read(name), tensor)
            for dim in range(tensor.dim()):
                found = folder.read(name, dim, 1, 5)
                assert found.is_contiguous() and torch.equal(found, tensor.narrow(dim, 1, 4))
                assert folder.read(name, dim, 3, 3).shape[dim] == 0
        folder.close()
        assert torch.equal(folder.read("model.norm.weight"), tensors["model.norm.weight"])


def test_the_cache_of_the_hub(checkpoint, tmp_path):
    """A snapshot is a folder of links. The folder above it is named by those who look for a model's name."""
    cache = tmp_path / "models--owner--name"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for file in checkpoint("qwen3_moe").iterdir():
        (snapshot / file.name).symlink_to(file)
    with HFFolder(snapshot) as folder:
        assert folder.config["model_type"] == "qwen3_moe" and folder.stored
    with pytest.raises(UserError, match=rf"set model.path to its snapshot, {snapshot}$"):
        read_model_config(replace(RUN, model=Model(path=str(cache))))


def test_a_relative_path_of_no_model_says_where_it_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"^mine has no config.json: .*; the path is relative to {tmp_path}$"):
        read_model_config(replace(RUN, model=Model(path="mine")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "has no config.json: give the path of a Hugging Face folder"),
        ("adapter_config.json", "merge it into the model"),
        ("model.safetensors.index.json", "holds no safetensors: neither model.safetensors nor model.safetensors.index"),
    ],
)
def test_folders_that_are_refused(sharded, name, message):
    (sharded / "consolidated.safetensors").touch()  # of another program
    HFFolder(sharded)
    if name.endswith("index.json"):
        (sharded / name).unlink()
    elif name != "nowhere":  # an adapter, for instance, would be applied by Transformers
        (sharded / name).write_text("{}")
    with pytest.raises(UserError, match=message):
        HFFolder(sharded / name if name == "nowhere" else sharded)


def test_an_index_of_the_one_file(checkpoint, tmp_path):
    """Some programs write an index with every model, also if all tensors are in one file."""
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "hf")
    index = {"metadata": {}, "weight_map": dict.fromkeys(HFFolder(folder).shapes(), "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert HFFolder(folder).shapes() == HFFolder(checkpoint("llama")).shapes()


@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 10_000, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_written_folder_is_read_by_transformers(checkpoint, tmp_path, kind, shard_bytes):
    source = HFFolder(checkpoint(kind))
    write_folder(tmp_path / "new", stream(source), source=source, shard_bytes=shard_bytes)
    written = HFFolder(tmp_path / "new")
    assert set(written.shapes()) == set(source.shapes())
    assert all(torch.equal(written.read(name), source.read(name)) for name in source.shapes())
    assert written.config == source.config
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "new").eval()
    assert torch.equal(logits(model), logits(AutoModelForCausalLM.from_pretrained(checkpoint(kind)).eval()))
    num_files = len(written.files)
    assert len(list((tmp_path / "new").glob("*.safetensors"))) == num_files
    assert num_files == {5_000_000_000: 1, 1: len(source.shapes())}.get(shard_bytes, num_files)
    for file in (tmp_path / "new").glob("model-*.safetensors"):
        tensors = load_file(file)
        assert len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= shard_bytes


def test_tokenizer_files_and_dtype(checkpoint, tmp_path):
    shutil.copytree(checkpoint("llama"), tmp_path / "source")
    kept = [
        "tokenizer.json",
        "tokenizer_config.json",
        "merges.txt",
        "spiece.model",
        "chat_template.jinja",
        "additional_chat_templates/a.jinja",
    ]
    left = ["README.md", "pytorch_model.bin", "modeling.py", "optimizer.pt"]
    for name in kept + left:
        (tmp_path / "source" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "source" / name).write_text(name)
    source = HFFolder(tmp_path / "source")
    tensors = ((name, tensor.bfloat16()) for name, tensor in stream(source))
    write_folder(tmp_path / "new", tensors, source=source)
    names = {str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert names == {*kept, "config.json", "generation_config.json", "model.safetensors"}
    written = HFFolder(tmp_path / "new")
    assert set(written.dtypes().values()) == {torch.bfloat16}
    assert written.config == source.config | {"dtype": "bfloat16"}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "new").dtype == torch.bfloat16


def test_mixed_dtypes_leave_config_as_it_was(checkpoint, tmp_path):
    source = HFFolder(checkpoint("llama"))
    tensors = [("a", torch.zeros(2)), ("b", torch.zeros(2).half()), ("c", torch.arange(2))]
    write_folder(tmp_path / "new", tensors, source=source)
    assert HFFolder(tmp_path / "new").config == source.config
    assert [HFFolder(tmp_path / "new").dtypes()[name] for name in "abc"] == [torch.float32, torch.float16, torch.int64]


def test_random_weights_keep_the_files_beside_them(checkpoint, tmp_path):
    """Transformers writes a tokenizer by the rules of a class, and a generation_config.json of its own."""
    source = shutil.copytree(checkpoint("llama"), tmp_path / "source")
    files = {
        "generation_config.json": '{"eos_token_id": [2, 5]}',
        "tokenizer.json": "{}",
        "tokenizer_config.json": "{}",
    }
    for name, text in files.items():
        (source / name).write_text(text)
    write_random_weights(source, tmp_path / "new", seed=0)
    assert {name: (tmp_path / "new" / name).read_text() for name in files} == files
