"""MXFP4 beside its formula, number by number, and beside Transformers, and folders as they are published."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion.convert import convert, quantize
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.mxfp4 import dequantize
from tests.weights import tiny_checkpoints

_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def packed(experts, outputs, inputs, seed=0):
    """Returns random blocks and scales."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 131, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
    return blocks, scales


def naive(blocks, scales):
    experts, outputs, count, _ = blocks.shape
    found = torch.zeros(experts, count * 32, outputs, dtype=torch.float64)
    for e in range(experts):
        for o in range(outputs):
            for i in range(count * 32):
                byte = int(blocks[e, o, i // 32, i % 32 // 2])
                bits = byte // 16 if i % 2 else byte % 16
                sign = -1 if bits >= 8 else 1
                found[e, i, o] = sign * _NUMBERS[bits % 8] * 2.0 ** (int(scales[e, o, i // 32]) - 127)
    return found


def test_the_formula_and_transformers_to_the_bit():
    blocks, scales = packed(3, 5, 64)
    found = dequantize(blocks, scales)
    assert found.dtype == torch.bfloat16 and torch.equal(found.double(), naive(blocks, scales))
    expected = convert_moe_packed_tensors(blocks.clone(), scales.clone())
    assert torch.equal(found.view(torch.int16), expected.contiguous().view(torch.int16))


def test_a_published_folder_is_read_in_bfloat16(tmp_path):
    """Reads experts from blocks and scales; `convert` there and back writes a plain folder."""
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    model = tiny_checkpoints.build("gpt_oss", **sizes).bfloat16()
    model.save_pretrained(tmp_path / "hf")
    file, config_file = tmp_path / "hf" / "model.safetensors", tmp_path / "hf" / "config.json"
    tensors, expected = load_file(file), {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = packed(experts, outputs, inputs, seed=len(tensors))
        expected[name] = naive(tensors[f"{name}_blocks"], tensors[f"{name}_scales"]).bfloat16()
    expected |= {name: tensor for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    of_scales = next(name for name in tensors if name.endswith("_scales"))
    save_file({name: each for name, each in tensors.items() if name != of_scales}, file, metadata={"format": "pt"})
    plain = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**plain, "quantization_config": {"quant_method": "mxfp4"}}))
    with pytest.raises(UserError, match=f"{of_scales.replace('scales', 'blocks')} without its scales"):
        convert(tmp_path / "hf", tmp_path / "megatron")
    save_file(tensors, file, metadata={"format": "pt"})
    convert(tmp_path / "hf", tmp_path / "megatron")
    convert(tmp_path / "megatron", tmp_path / "back")
    found = HFFolder(tmp_path / "back")
    assert found.config == plain and found.shapes().keys() == expected.keys()
    assert all(torch.equal(found.read(name), tensor) for name, tensor in expected.items())
    with pytest.raises(UserError, match="quantize is fp8"):
        quantize(tmp_path / "back", tmp_path / "fp8")
