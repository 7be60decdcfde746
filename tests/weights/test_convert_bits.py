"""Conversions are exact to the bit in both directions, and take along everything that belongs to a model."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.verify import verify
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.formats.torch_dist import read_index
from tests.weights.folders import assert_same_bits, edit_json, tensors
from tests.weights.tiny_checkpoints import KINDS, build

_FUSED = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_in_small_blocks_is_bitwise_equal(checkpoint, tmp_path, kind):
    there = convert(checkpoint(kind), tmp_path / "megatron")
    assert max(len(tensor.pieces) for tensor in read_index(tmp_path / "megatron").values()) >= 10
    assert len(list((tmp_path / "megatron").glob("__*_0.distcp"))) > 1
    back = convert(tmp_path / "megatron", tmp_path / "hf")
    assert len(list((tmp_path / "hf").glob("model-*.safetensors"))) > 1
    assert (there.direction, back.direction) == ("megatron", "hf")
    assert there.num_bytes == back.num_bytes
    assert_same_bits(checkpoint(kind), tmp_path / "hf")
    assert HFFolder(tmp_path / "hf").config == HFFolder(checkpoint(kind)).config
    assert verify(checkpoint(kind), tmp_path / "megatron").differences == []


@pytest.mark.parametrize("max_shard_size", ["1GB", "3KB"])
@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_all_experts_of_a_layer_in_one_tensor(checkpoint, tmp_path, kind, max_shard_size):
    """Transformers 5 writes such folders on request."""
    model = build(kind)
    model.save_pretrained(tmp_path / "fused", save_original_format=False, max_shard_size=max_shard_size)
    assert "model.layers.0.mlp.experts.gate_up_proj" in tensors(tmp_path / "fused")
    convert(tmp_path / "fused", tmp_path / "megatron")
    convert(tmp_path / "megatron", tmp_path / "hf")
    assert_same_bits(checkpoint(kind), tmp_path / "hf")
    assert verify(tmp_path / "fused", tmp_path / "megatron").differences == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"model.layers.0.mlp.experts.0.up_proj.weight": torch.zeros(12, 16)}, "up_proj.weight twice"),
        (lambda t: t | {_FUSED: t[_FUSED][:5].clone()}, f"without a row in the weight table: {_FUSED}"),
        (lambda t: t | {_FUSED: t[_FUSED].flatten()}, f"without a row in the weight table: {_FUSED}"),
        (lambda t: t | {_FUSED: torch.zeros(6, 24, 0)}, r"up_proj.weight \[12, 0\] instead of \[12, 16\]"),
    ],
    ids=["an expert twice", "an expert too few", "flat", "empty"],
)
def test_wrong_tensors_of_all_experts(tmp_path, change, message):
    build("qwen3_moe").save_pretrained(tmp_path / "hf", save_original_format=False)
    file = tmp_path / "hf" / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=message):
        convert(tmp_path / "hf", tmp_path / "megatron")
    assert not list(tmp_path.glob("megatron*"))


def test_frequencies_of_the_rotary_embedding_are_left_out(checkpoint, tmp_path):
    """Llama 2 was published with them; Transformers computes them from config.json."""
    shutil.copytree(checkpoint("llama"), tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    frequencies = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(1) for layer in range(2)}
    save_file(load_file(file) | frequencies, file, metadata={"format": "pt"})
    convert(tmp_path / "hf", tmp_path / "megatron")
    convert(tmp_path / "megatron", tmp_path / "back")
    assert_same_bits(checkpoint("llama"), tmp_path / "back")
    assert verify(tmp_path / "hf", tmp_path / "back").differences == []


def test_the_language_model_of_a_model_of_images_and_text(tmp_path, capsys):
    """Qwen3.5 is published so, with tensors of multi-token prediction and one tensor for a layer's experts."""
    from transformers import AutoModelForCausalLM, Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    text = build("qwen3_5_moe_text").config.to_dict()
    vision = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "patch_size": 2}
    vision |= {"out_hidden_size": text["hidden_size"], "num_position_embeddings": 4}
    torch.manual_seed(0)
    whole = Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(text_config=text, vision_config=vision))
    whole.save_pretrained(tmp_path / "whole", save_original_format=False)
    file = tmp_path / "whole" / "model.safetensors"
    tensors = load_file(file)
    assert any("mlp.experts.gate_up_proj" in name for name in tensors) and any("visual" in name for name in tensors)
    save_file(tensors | {"mtp.fc.weight": torch.zeros(3, 3)}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match="a model of images and text"):
        load_family(read_json(tmp_path / "whole" / "config.json"))
    convert(tmp_path / "whole", tmp_path / "megatron")
    assert "1 tensors of multi-token prediction are left out" in capsys.readouterr().err
    convert(tmp_path / "megatron", tmp_path / "text")
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "text")(tokens).logits
        assert torch.equal(found, whole(input_ids=tokens).logits)


def test_tensors_of_multi_token_prediction_are_left_out(checkpoint, tmp_path, capsys):
    """GLM-4.5 is published with a layer after its last one, which has tensors of every kind and some of its own."""
    shutil.copytree(checkpoint("glm4_moe"), tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    last = {name.replace("layers.1.", "layers.2."): t for name, t in load_file(file).items() if ".layers.1." in name}
    mtp = last | {"model.layers.2.eh_proj.weight": torch.zeros(16, 32)}
    save_file(load_file(file) | mtp, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"{len(mtp)} without a row in the weight table"):
        convert(tmp_path / "hf", tmp_path / "megatron")
    edit_json(tmp_path / "hf" / "config.json", lambda config: config.update(num_nextn_predict_layers=1))
    convert(tmp_path / "hf", tmp_path / "megatron")
    assert f"hf: {len(mtp)} tensors of multi-token prediction are left out" in capsys.readouterr().err
    convert(tmp_path / "megatron", tmp_path / "back")
    assert_same_bits(checkpoint("glm4_moe"), tmp_path / "back")
    assert HFFolder(tmp_path / "back").config["num_nextn_predict_layers"] == 0
    assert verify(tmp_path / "hf", tmp_path / "back").differences == []


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("llama", "layers.1.input_layernorm"),
        ("qwen3_moe", ".experts.1."),
        ("qwen2", "k_proj"),
        ("llama", "v_proj"),
        ("qwen3", "up_proj"),
        ("mixtral", ".w3"),
    ],
    ids=["layers", "experts", "keys with biases", "values", "up", "up of experts"],
)
@pytest.mark.usefixtures("small_blocks")
def test_parts_of_a_parameter_of_different_dtypes(checkpoint, tmp_path, kind, part):
    """Megatron has one tensor, of one dtype, for all layers and experts, for q, k and v, and for gate and up."""
    shutil.copytree(checkpoint(kind), tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    mixed = {name: tensor.half() if part in name else tensor for name, tensor in load_file(file).items()}
    save_file(mixed, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"weight is float32 and .* is float16, .* with --dtype"):
        convert(tmp_path / "hf", tmp_path / "megatron")
    convert(tmp_path / "hf", tmp_path / "megatron", dtype=torch.float32)
    convert(tmp_path / "megatron", tmp_path / "back")
    found = tensors(tmp_path / "back")
    assert all(torch.equal(tensor.float(), found[name]) for name, tensor in mixed.items())


def test_nan_bits_survive(tmp_path, checkpoint):
    shutil.copytree(checkpoint("llama"), tmp_path / "hf")
    original = tensors(tmp_path / "hf")
    noise = {
        name: torch.randint(0, 1 << 16, tensor.shape, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
        for name, tensor in original.items()
    }
    assert any(tensor.isnan().any() for tensor in noise.values())
    save_file(noise, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    convert(tmp_path / "hf", tmp_path / "megatron")
    convert(tmp_path / "megatron", tmp_path / "back")
    assert_same_bits(tmp_path / "hf", tmp_path / "back")


@pytest.mark.parametrize("direction", ["there", "back"])
@pytest.mark.parametrize("kind", ["qwen2", "glm4_moe"])
def test_cast_to_another_dtype(checkpoint, tmp_path, direction, kind):
    there, back = (torch.bfloat16, None) if direction == "there" else (None, torch.bfloat16)
    convert(checkpoint(kind), tmp_path / "megatron", dtype=there)
    convert(tmp_path / "megatron", tmp_path / "hf", dtype=back)
    expected = tensors(checkpoint(kind))
    for name, tensor in tensors(tmp_path / "hf").items():
        own = torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16
        assert tensor.dtype == own and torch.equal(tensor, expected[name].to(own))
    assert HFFolder(tmp_path / "hf").config["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("stored", "value", "dtype", "sentence"),
    [
        (torch.float32, -7e4, torch.float16, r"has values beyond 6\.55e\+04, the largest of float16; choose"),
        (torch.bfloat16, 1e30, torch.float16, "the largest of float16"),
        (torch.float64, 1e300, torch.float32, "the largest of float32"),
        (torch.float32, 3.4028e38, torch.bfloat16, "the largest of bfloat16"),
        (torch.float32, torch.inf, torch.float16, None),
        (torch.float32, 6.5e4, torch.float16, None),
    ],
)
def test_a_value_that_a_dtype_cannot_hold(checkpoint, tmp_path, stored, value, dtype, sentence):
    shutil.copytree(checkpoint("llama"), tmp_path / "hf")
    found = {name: tensor.to(stored) for name, tensor in tensors(tmp_path / "hf").items()}
    found["model.norm.weight"][3] = value
    save_file(found, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    if sentence is None:
        convert(tmp_path / "hf", tmp_path / "megatron", dtype=dtype)
        return
    with pytest.raises(UserError, match=f"model.norm.weight of {tmp_path / 'hf'} .*{sentence}"):
        convert(tmp_path / "hf", tmp_path / "megatron", dtype=dtype)
    assert not (tmp_path / "megatron").exists()


def test_tokenizer_and_chat_template_are_copied(checkpoint, tmp_path):
    shutil.copytree(checkpoint("llama"), tmp_path / "hf")
    names = ("tokenizer.json", "chat_template.jinja", "generation_config.json", "additional_chat_templates/a.jinja")
    (tmp_path / "hf" / "additional_chat_templates").mkdir()
    for name in names:
        (tmp_path / "hf" / name).write_text(f'{{"of": "{name}"}}')
    convert(tmp_path / "hf", tmp_path / "megatron")
    convert(tmp_path / "megatron", tmp_path / "back")
    for name in names:
        assert (tmp_path / "back" / name).read_text() == f'{{"of": "{name}"}}'


def test_a_configuration_with_a_path_that_is_not_utf8(checkpoint, tmp_path):
    """Python reads such a path with lone surrogates, which JSON can write and UTF-8 cannot."""
    shutil.copytree(checkpoint("llama"), tmp_path / "hf")
    edit_json(tmp_path / "hf" / "config.json", lambda config: config.update(_name_or_path="caf\udce9", note="café"))
    convert(tmp_path / "hf", tmp_path / "megatron")
    convert(tmp_path / "megatron", tmp_path / "back")
    assert HFFolder(tmp_path / "back").config == HFFolder(tmp_path / "hf").config
