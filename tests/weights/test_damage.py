"""Damaged or wrong models: `convert` refuses each in one sentence that names the file, and leaves nothing."""

import pytest
import torch
from safetensors.torch import load_file

from megatron_sspo.__main__ import main
from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.formats.torch_dist import read_index
from tests.weights.folders import change, edit_json, file_of

NORM = "model.norm.weight"
INDEX = "model.safetensors.index.json"


def config(**values):
    return lambda folder: edit_json(folder / "config.json", lambda content: content.update(values))


def tensor(name, value):
    """Replaces a tensor; None removes it."""
    return lambda folder: change(file_of(folder, name), **{name: value})


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def first_shard(content):
    def damage(folder):
        shard = min(folder.glob("*.safetensors"))
        shard.write_bytes(content(shard.read_bytes()))

    return damage


def extra_tensor(folder):
    change(file_of(folder, NORM), model__surprise=torch.zeros(3))


def packed(folder):
    """Stores a matrix as GPTQ does: by tensors of other names."""
    module = "model.layers.0.self_attn.q_proj"
    packed = {f"{module}.qweight": torch.zeros(2, 48, dtype=torch.int32), f"{module}.scales": torch.ones(1, 48)}
    change(file_of(folder, f"{module}.weight"), **{f"{module}.weight": None}, **packed)


def mixed_dtypes(folder):
    name = "model.layers.0.self_attn.q_proj.weight"
    change(file_of(folder, name), **{name: load_file(file_of(folder, name))[name].bfloat16()})


def twice(folder):
    other = next(file for file in folder.glob("*.safetensors") if file != file_of(folder, NORM))
    change(other, **{NORM: torch.zeros(16)})


HUGGING_FACE = {
    "a shard is cut": (
        first_shard(lambda content: content[:-100]),
        r"cannot read .*\.safetensors.*truncated or damaged",
    ),
    "a shard is a pointer": (
        first_shard(lambda _: b"version https://git-lfs"),
        "is a pointer of Git LFS, .*git lfs pull",
    ),
    "a shard is missing": (lambda folder: file_of(folder, NORM).unlink(), r"cannot read .*\.safetensors: No such file"),
    "the index is cut": (cut(INDEX), f"{INDEX} is not JSON"),
    "config.json is cut": (cut("config.json"), "config.json is not JSON"),
    "config.json is of another shape": (
        config(intermediate_size="24"),
        "intermediate_size '24'; it must be a positive",
    ),
    "a tensor is of another shape": (tensor(NORM, torch.zeros(17)), rf"1 of the wrong shape: {NORM} \[17\] instead of"),
    "a tensor is missing": (tensor(NORM, None), f"1 missing: {NORM}"),
    "a tensor too many": (extra_tensor, "1 without a row in the weight table: model.surprise"),
    "a tensor twice": (twice, f"holds {NORM} twice"),
    "a model of no family": (config(model_type="gpt2"), "model_type 'gpt2' .*is not supported: the model families are"),
    "a tensor of int8": (tensor(NORM, torch.zeros(16, dtype=torch.int8)), f"{NORM} of .* is torch.int8, which is not"),
    "packed tensors": (packed, r"q_proj.qweight of .* is torch.int32, .*: it is quantized; .*dequantize\(\)"),
    "quantized": (
        config(quantization_config={"quant_method": "fp8"}),
        r"quantization_config .*: get the model in bfloat",
    ),
    "mixed dtypes": (
        mixed_dtypes,
        "q_proj.weight is bfloat16 and .*k_proj.weight is float32, but .* one tensor, .*--dty",
    ),
    "code of its own": (
        write("tokenizer_config.json", b'{"auto_map": {"AutoTokenizer": ["tokenization_x.X", null]}}'),
        r"tokenizer_config.json names code of its own \(auto_map\)",
    ),
    "a damaged tokenizer": (write("tokenizer.json", b'{"added_tokens": ['), "tokenizer.json is not JSON"),
    "a field that changes the model": (
        config(hidden_act="gelu"),
        "hf: config.json has hidden_act 'gelu', which is not",
    ),
}
MEGATRON = {
    "records are cut": (cut("__0_0.distcp"), r"__0_0.distcp is missing or truncated"),
    "records are missing": (lambda folder: (folder / "__0_0.distcp").unlink(), r"__0_0.distcp is missing or truncated"),
    "the index is cut": (cut(".metadata"), r"\.metadata is missing or damaged"),
    "the index is text": (write(".metadata", b"text"), r"\.metadata is missing or damaged"),
    "unfinished": (
        lambda folder: (folder / ".metadata").unlink(),
        r"missing or damaged \(FileNotFoundError",
    ),
    "another model": (
        config(num_hidden_layers=3),
        r"wrong shape: .*linear_proj.weight \[2, 16, 48\] instead of \[3, 16",
    ),
    "a tensor too many": (config(tie_word_embeddings=True), "1 without a row in the weight table: output_layer.weight"),
    "parameters are missing": (
        config(model_type="qwen3", architectures=None),
        "2 missing: decoder.layers.mlp.linear_fc1.weight, decoder.layers.mlp.linear_fc2.weight",
    ),
    "no config.json": (lambda folder: (folder / "config.json").unlink(), "has no config.json, .* with --config"),
    "a damaged tokenizer": (write("tokenizer.json", b'{"added_tokens": ['), "tokenizer.json is not JSON"),
    **{
        f"a vocabulary of {size}": (config(vocab_size=size), rf"embeddings.weight \[97, 16\] instead of \[{size}, 16\]")
        for size in (96, 98)
    },
}


@pytest.mark.parametrize(("kind", "name"), [*((0, name) for name in HUGGING_FACE), *((1, name) for name in MEGATRON)])
def test_convert_refuses(pair, tmp_path, capsys, kind, name):
    damage, message = (HUGGING_FACE, MEGATRON)[kind][name]
    damage(pair[kind])
    capsys.readouterr()
    assert main(["convert", str(pair[kind]), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("megatron-sspo: ") and len(said) < 2000
    with pytest.raises(UserError, match=message) as raised:
        convert(pair[kind], tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("out*")), "something was written"


@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
def test_a_flipped_bit_of_a_weight_is_found(pair, tmp_path, part):
    """Every record of a checkpoint has a CRC-32, which torch does not compare."""
    file = pair[1] / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    piece = read_index(pair[1])["embedding.word_embeddings.weight"].pieces[0]
    start = content.index(HFFolder(pair[0]).read("model.embed_tokens.weight").numpy().tobytes(), piece.offset)
    content[start + int(part * 97 * 16 * 4)] ^= 1
    file.write_bytes(content)
    message = rf"embedding.word_embeddings.weight \[0, 0\] in {file} is damaged .*CRC-32.*; get the checkpoint again"
    with pytest.raises(UserError, match=message):
        convert(pair[1], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
    with pytest.raises(UserError, match=message):  # as the trainer reads a shard
        open_folder(pair[1]).read("model.embed_tokens.weight", 0, 0, 1)
