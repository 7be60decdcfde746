"""The comparison of two folders."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.verify import verify
from megatron_sspo.weights.formats.hf_folder import HFFolder
from tests.weights.folders import change, edit_json


def test_verify_reports_differing_bytes(pair):
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    file = pair[0] / HFFolder(pair[0]).index[name]
    content = load_file(file)
    content[name].view(torch.uint8)[0, 0] ^= 1
    save_file(content, file, metadata={"format": "pt"})
    assert verify(*pair).differences == [f"{name} differs in 1 of 768 bytes"]


def test_verify_reports_dtypes_and_missing_tensors(pair, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(pair[0], other)
    file = HFFolder(other).index["model.norm.weight"]
    change(other / file, model__norm__weight=torch.zeros(16).half())
    differences = ["model.norm.weight is torch.float32 [16] and torch.float16 [16]"]
    assert verify(pair[0], other).differences == differences
    change(other / file, model__norm__weight=None)
    edit_json(other / "model.safetensors.index.json", lambda index: index["weight_map"].pop("model.norm.weight"))
    assert verify(pair[0], other).differences == [f"model.norm.weight is only in {pair[0]}"]
    assert verify(other, pair[1]).differences == [f"model.norm.weight is only in {pair[1]}"]


def test_a_cast_cannot_be_verified(checkpoint, tmp_path):
    convert(checkpoint("llama_tied"), tmp_path / "cast", dtype=torch.float16)
    words = (
        r"^20 of 20 tensors of .* have another dtype than in .*cast, .* \(torch.float32 and torch.float16\): bits are"
    )
    with pytest.raises(UserError, match=words) as raised:
        verify(checkpoint("llama_tied"), tmp_path / "cast")
    assert "\n" not in str(raised.value)


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
