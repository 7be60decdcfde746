"""The FP8 quantizer beside its formula, written element by element, and beside the layout of published folders."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

from megatron_sspo.weights.conversion.convert import quantize as quantize_folder
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.fp8 import (
    dequantize,
    quantization_config,
    quantize,
    quantized_names,
    quantized_stream,
)
from tests.policy import tiny_policy


def naive(weight):
    out, into = weight.shape
    scales = torch.ones(math.ceil(out / 128), math.ceil(into / 128))
    values = torch.zeros(weight.shape)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = weight[i * 128 : i * 128 + 128, j * 128 : j * 128 + 128].float()
            if block.abs().max() > 0:
                scales[i, j] = block.abs().max() / 448
            values[i * 128 : i * 128 + 128, j * 128 : j * 128 + 128] = block / scales[i, j]
    return values.to(torch.float8_e4m3fn), scales


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (130, 5), (1, 129), (300, 260)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_and_scales_to_the_bit(shape, dtype):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype) * 0.02
    weight[:1, :] *= 30  # an outlier moves the scale of its own blocks alone
    weight[shape[0] // 2 :] = 0  # blocks of zeros have the scale 1
    values, scales = quantize(weight)
    expected_values, expected_scales = naive(weight)
    assert torch.equal(values.view(torch.uint8), expected_values.view(torch.uint8))
    assert torch.equal(scales, expected_scales) and scales.dtype == torch.float32
    found = dequantize(values, scales, torch.float32)
    # e4m3 has three bits of mantissa: half a unit in the last place is 1/16 of a number, or of the smallest normal one
    bound = weight.float().abs() / 16 + weight.float().abs().max() / 448 / 2**10
    assert bool(((found - weight.float()).abs() <= bound).all())


def test_layers_are_quantized_as_in_published_folders(tmp_path):
    folder = tiny_policy.save("moe", tmp_path / "moe")
    config = json.loads((folder / "config.json").read_text())
    rows = load_family(config, folder).rows(config, tiny_policy.VOCAB_SIZE)
    names = quantized_names(rows)
    assert {name.split(".")[-2] for name in names} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    left_out = quantization_config(rows)["modules_to_not_convert"]
    # as in Qwen3-30B-A3B-FP8: norms, routers, the embedding and the output layer
    assert {"lm_head", "model.embed_tokens", "model.layers.0.mlp.gate", "model.layers.3.input_layernorm"} <= {*left_out}
    assert not {name.removesuffix(".weight") for name in names} & {*left_out}
    stream = [(name, torch.zeros(shape)) for row in rows for name, shape in zip(row.hf, row.hf_shapes, strict=True)]
    found = dict(quantized_stream(stream, names))
    assert found.keys() == {name for name, _ in stream} | {f"{name}_scale_inv" for name in names}
    assert {found[name].dtype for name in names} == {torch.float8_e4m3fn}


def test_a_folder_in_fp8_is_written_and_read_as_bfloat16(tmp_path):
    source = tiny_policy.save("moe", tmp_path / "moe")
    summary = quantize_folder(source, tmp_path / "fp8")
    stored = load_file(tmp_path / "fp8" / "model.safetensors")
    assert summary.num_tensors == len(stored) and summary.num_bytes == sum(t.nbytes for t in stored.values())
    weights = load_file(source / "model.safetensors")
    with open_folder(tmp_path / "fp8") as folder, open_folder(source) as original:
        folder.check(folder.rows())
        assert folder.shapes() == original.shapes() and folder.config == original.config
        for name, weight in weights.items():
            found = folder.read(name)
            if f"{name}_scale_inv" in stored:
                assert torch.equal(found, dequantize(*quantize(weight), torch.bfloat16))
                assert torch.equal(folder.read(name, 0, 3, 17), found[3:17])
                assert torch.equal(folder.read(name, 1, 3, 17), found[:, 3:17])
            else:
                assert torch.equal(found, weight)


def test_rows_that_begin_within_a_block():
    weight = torch.randn(300, 260, generator=torch.Generator().manual_seed(0))
    values, scales = quantize(weight)
    whole = dequantize(values, scales, torch.bfloat16)
    for start, stop in ((0, 300), (100, 260), (128, 256), (299, 300), (5, 6)):
        assert torch.equal(
            dequantize(values[start:stop], scales[start // 128 : -(-stop // 128)], torch.bfloat16, first=start),
            whole[start:stop],
        )


def test_transformers_reads_the_folder_to_the_same_bits(tmp_path):
    quantize_folder(tiny_policy.save("moe", tmp_path / "moe"), tmp_path / "fp8")
    plan = FineGrainedFP8Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "fp8", quantization_config=plan, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "again")
    expected = load_file(tmp_path / "again" / "model.safetensors")
    with open_folder(tmp_path / "fp8") as folder:
        assert expected.keys() == folder.shapes().keys()
        assert all(torch.equal(folder.read(name).to(torch.bfloat16), tensor) for name, tensor in expected.items())
