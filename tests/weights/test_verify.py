"""The comparison of two folders."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.verify import verify
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.formats.open_folder import open_folder
from tests.weights.folders import change, edit_json, file_of


def test_verify_reports_differing_bytes(pair):
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    file = file_of(pair[0], name)
    content = load_file(file)
    content[name].view(torch.uint8)[0, 0] ^= 1
    save_file(content, file, metadata={"format": "pt"})
    assert verify(*pair).differences == [f"{name} differs in 1 of 768 bytes"]


def test_verify_reports_dtypes_and_missing_tensors(pair, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(pair[0], other)
    file = file_of(other, "model.norm.weight")
    change(file, model__norm__weight=torch.zeros(16).half())
    differences = ["model.norm.weight is torch.float32 [16] and torch.float16 [16]"]
    assert verify(pair[0], other).differences == differences
    change(file, model__norm__weight=None)
    assert verify(pair[0], other).differences == [f"model.norm.weight is only in {pair[0]}"]
    assert verify(other, pair[1]).differences == [f"model.norm.weight is only in {pair[1]}"]


def test_a_fingerprint_is_of_the_weights_and_not_of_their_files(pair, tmp_path):
    first = HFFolder(pair[0])
    assert first.fingerprint() == open_folder(pair[1]).fingerprint()
    shutil.copytree(pair[0], tmp_path / "moved")
    assert HFFolder(tmp_path / "moved").fingerprint() == first.fingerprint()
    for name in ("model.norm.weight", "lm_head.weight", "model.layers.1.mlp.experts.0.up_proj.weight"):
        other = shutil.copytree(pair[0], tmp_path / name)
        file = file_of(other, name)
        content = load_file(file)
        save_file({**content, name: content[name] + 1}, file, metadata={"format": "pt"})
        assert HFFolder(other).fingerprint() != first.fingerprint()


@pytest.mark.parametrize("names", [[], ["model.layers.0.self_attn.rotary_emb.inv_freq"]])
def test_folders_of_no_tensors_are_not_equal(tmp_path, names):
    (tmp_path / "config.json").write_text("{}")
    save_file({name: torch.zeros(4) for name in names}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="holds safetensors without a tensor of a model"):
        verify(tmp_path, tmp_path)


@pytest.mark.parametrize("other", ["megatron", "hf"])
def test_a_stored_copy_of_a_tied_embedding_is_compared_with_it(checkpoint, tmp_path, other):
    copied = shutil.copytree(checkpoint("llama_tied"), tmp_path / "copied")
    if other == "megatron":
        convert(checkpoint("llama_tied"), tmp_path / "without")
    else:
        shutil.copytree(checkpoint("llama_tied"), tmp_path / "without")
    embedding = HFFolder(copied).read("model.embed_tokens.weight")
    change(copied / "model.safetensors", lm_head__weight=embedding.clone())
    for pair in ((copied, tmp_path / "without"), (tmp_path / "without", copied)):
        assert verify(*pair).differences == []
    embedding.view(torch.uint8)[0, 0] ^= 1
    change(copied / "model.safetensors", lm_head__weight=embedding)
    assert verify(copied, tmp_path / "without").differences == ["lm_head.weight differs in 1 of 6,208 bytes"]
    edit_json(tmp_path / "without" / "config.json", lambda config: config.update(tie_word_embeddings=False))
    if other == "hf":  # a Megatron checkpoint without an output layer is refused then
        assert verify(copied, tmp_path / "without").differences == [f"lm_head.weight is only in {copied}"]
