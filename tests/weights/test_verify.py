"""The comparison of two folders."""

import shutil

import torch
from safetensors.torch import load_file, save_file

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
