"""Conversions report what is wrong before anything is written."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_sspo.__main__ import main
from megatron_sspo.errors import UserError
from megatron_sspo.evaluation.model import open_model
from megatron_sspo.files.manifest import Manifest, checksums, files_of, write_manifest
from megatron_sspo.weights.conversion import convert as convert_module
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.verify import verify
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.formats.torch_dist import read_index
from tests.forking import run_python
from tests.weights.folders import change, edit_json


def truncated(folder):
    file = sorted(folder.glob("*.safetensors"))[-1]
    file.write_bytes(file.read_bytes()[:-100])
    return rf"cannot read {file}.*truncated or damaged"


def wrong_shape(folder):
    file = HFFolder(folder).index["model.norm.weight"]
    change(folder / file, model__norm__weight=torch.zeros(17))
    return r"1 of the wrong shape: model.norm.weight \[17\] instead of \[16\]"


def missing_shard(folder):
    file = HFFolder(folder).index["model.norm.weight"]
    (folder / file).unlink()
    return f"names {file}, which is not in the folder"


def missing_tensor(folder):
    file = HFFolder(folder).index["model.norm.weight"]
    change(folder / file, model__norm__weight=None)
    edit_json(folder / "model.safetensors.index.json", lambda index: index["weight_map"].pop("model.norm.weight"))
    return "1 missing: model.norm.weight"


def extra_tensor(folder):
    file = HFFolder(folder).index["model.norm.weight"]
    change(folder / file, model__surprise=torch.zeros(3))
    edit_json(folder / "model.safetensors.index.json", lambda i: i["weight_map"].update({"model.surprise": file}))
    return "1 without a row in the weight table: model.surprise"


def index_disagrees(folder):
    file = HFFolder(folder).index["model.norm.weight"]
    change(folder / file, model__norm__weight=None)
    return f"{file} lacks model.norm.weight, which model.safetensors.index.json places there"


def unsupported(folder):
    edit_json(folder / "config.json", lambda config: config.update(model_type="gpt2"))
    return "model_type 'gpt2' of config.json is not supported"


def quantized(folder):
    file = HFFolder(folder).index["model.norm.weight"]
    change(folder / file, model__norm__weight=torch.zeros(16, dtype=torch.int8))
    return "model.norm.weight of .* is torch.int8, which is not supported"


def packed(folder):
    """Stores a matrix as GPTQ does: by tensors of other names."""
    module = "model.layers.0.self_attn.q_proj"
    file = HFFolder(folder).index[f"{module}.weight"]
    packed = {f"{module}.qweight": torch.zeros(2, 48, dtype=torch.int32), f"{module}.scales": torch.ones(1, 48)}
    change(folder / file, **{f"{module}.weight": None}, **packed)

    def edit(index):
        del index["weight_map"][f"{module}.weight"]
        index["weight_map"].update(dict.fromkeys(packed, file))

    edit_json(folder / "model.safetensors.index.json", edit)
    return r"q_proj.qweight of .* is torch.int32, .*: it is quantized, .*quantization_config.*dequantize\(\)"


def quantized_by_config(folder):
    edit_json(folder / "config.json", lambda config: config.update(quantization_config={"quant_method": "fp8"}))
    return r"has quantization_config \{'quant_method': 'fp8'\}, which is not supported: get the model in bfloat16, or "


def mixed_dtypes(folder):
    name = "model.layers.0.self_attn.q_proj.weight"
    file = HFFolder(folder).index[name]
    change(folder / file, **{name: load_file(folder / file)[name].bfloat16()})
    return (
        "q_proj.weight is bfloat16 and .*k_proj.weight is float32, but .* one tensor, .*linear_qkv.weight; .* --dtype"
    )


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        wrong_shape,
        missing_shard,
        missing_tensor,
        extra_tensor,
        index_disagrees,
        unsupported,
        quantized,
        packed,
        quantized_by_config,
        mixed_dtypes,
    ],
)
def test_damaged_hugging_face_folders(pair, tmp_path, damage):
    message = damage(pair[0])
    with pytest.raises(UserError, match=message) as raised:
        convert(pair[0], tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("out*")), "something was written"


def truncated_records(folder):
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])
    return rf"{file} is truncated: .* ends at"


def missing_records(folder):
    (folder / "__0_0.distcp").unlink()
    return r"__0_0.distcp is missing, which holds "


def another_model(folder):
    edit_json(folder / "config.json", lambda config: config.update(num_hidden_layers=3))
    return r"of the wrong shape or dtype: .*linear_proj.weight \[2, 16, 48\] instead of \[3, 16, 48\]"


def left_over(folder):
    edit_json(folder / "config.json", lambda config: config.update(tie_word_embeddings=True))
    return "1 without a row in the weight table: output_layer.weight"


def not_there(folder):
    edit_json(folder / "config.json", lambda config: config.update(model_type="qwen3", architectures=None))
    return r"4 missing: decoder.layers.0.mlp.linear_fc1.weight \(decoder.layers.mlp.linear_fc1.weight\)"


def no_config(folder):
    (folder / "config.json").unlink()
    return "has no config.json, .* with --config"


def unfinished(folder):
    (folder / ".metadata").unlink()
    return "has no .metadata: it is not a torch_dist checkpoint, or was not finished"


def another_format(folder):
    edit_json(folder / "metadata.json", lambda config: config.update(sharded_backend="zarr"))
    return "is a checkpoint of the format 'zarr' .*, which is not supported; save it as torch_dist"


def no_backend(folder):
    (folder / "metadata.json").write_text("{}")
    return r"is a checkpoint of the format None \(sharded_backend of metadata.json\), which is not supported"


@pytest.mark.parametrize(
    "damage",
    [
        truncated_records,
        missing_records,
        another_model,
        left_over,
        not_there,
        no_config,
        unfinished,
        another_format,
        no_backend,
    ],
)
def test_damaged_megatron_checkpoints(pair, tmp_path, damage):
    message = damage(pair[1])
    with pytest.raises(UserError, match=message) as raised:
        convert(pair[1], tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("out*")) and not (pair[1] / "hacked").exists()


def test_a_damaged_record_is_found_when_it_is_read(pair, tmp_path):
    file = pair[1] / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    piece = read_index(pair[1])["decoder.final_layernorm.weight"].pieces[0]
    content[piece.offset : piece.offset + 60] = bytes(60)
    content[piece.offset + piece.length - 60 : piece.offset + piece.length] = bytes(60)
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"decoder.final_layernorm.weight \[0\] in {file} is damaged"):
        convert(pair[1], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


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


@pytest.fixture
def updates(pair, tmp_path):
    """Two checkpoints of a run, of equal sizes and other weights."""
    for number, folder in ((40, pair[0]), (50, shutil.copytree(pair[0], tmp_path / "other"))):
        if number == 50:
            change(folder / HFFolder(folder).index["model.norm.weight"], model__norm__weight=torch.rand(16))
        update = tmp_path / f"update-{number:06d}"
        update.mkdir()
        convert(folder, update / "trainer")
        write_manifest(update, Manifest(checksums(update, files_of(update)), {}))
    return tmp_path / "update-000040", tmp_path / "update-000050"


def test_a_sound_checkpoint_of_a_run(updates, pair, tmp_path):
    (updates[1] / "notes.txt").touch()
    convert(updates[1], tmp_path / "out")
    assert verify(updates[1] / "trainer", tmp_path / "other").differences == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda old, new: shutil.copy(old / "trainer/__0_0.distcp", new / "trainer"), "the content of trainer/__0_0"),
        (lambda old, new: shutil.copy(old / "manifest.json", new), "the content of trainer/__0_0.distcp is not what"),
        (lambda old, new: (new / "trainer/common.pt").write_bytes(b""), "trainer/common.pt has 0 bytes"),
        (lambda old, new: (new / "trainer/__9_0.distcp").touch(), "trainer/__9_0.distcp does not belong to it"),
        (lambda old, new: (new / "manifest.json").write_text("{}"), "manifest.json cannot be read"),
    ],
)
def test_a_checkpoint_of_a_run_that_differs_from_its_manifest(updates, tmp_path, monkeypatch, damage, message):
    damage(*updates)
    monkeypatch.chdir(updates[1] / "trainer")
    for path in (updates[1], updates[1] / "trainer", Path()):
        with pytest.raises(UserError, match=message):
            convert(path, tmp_path / "out")
        with pytest.raises(UserError, match=message):
            verify(tmp_path / "other", path)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("vocab_size", [1, 32, 50, 96, 98])
def test_rows_that_are_no_padding(pair, tmp_path, vocab_size):
    edit_json(pair[1] / "config.json", lambda config: config.update(vocab_size=vocab_size))
    with pytest.raises(UserError, match=rf"embeddings.weight \[97, 16\] instead of \[{vocab_size}, 16\].*; check that"):
        convert(pair[1], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_padding_that_is_left_out_is_said(pair, tmp_path, capsys):
    edit_json(pair[0] / "config.json", lambda config: config.update(vocab_size=100))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        file = pair[0] / HFFolder(pair[0]).index[name]
        change(file, **{name: torch.cat([load_file(file)[name], torch.zeros(3, 16)])})
    convert(pair[0], tmp_path / "padded")
    edit_json(tmp_path / "padded" / "config.json", lambda config: config.update(vocab_size=97))
    capsys.readouterr()
    convert(tmp_path / "padded", tmp_path / "out")
    assert "the last 3 of 100 rows of the vocabulary are left out" in capsys.readouterr().err
    assert verify(tmp_path / "padded", pair[1]).differences == []
    assert "the last 3 of 100 rows" in capsys.readouterr().err
    assert open_folder(tmp_path / "out").shapes()["model.embed_tokens.weight"] == (97, 16)


@pytest.mark.parametrize("content", ["{}", '["a"]', "no JSON", '{"dataset": "of another program"}'])
def test_another_programs_metadata_beside_safetensors(pair, tmp_path, content):
    (pair[0] / "metadata.json").write_text(content)
    convert(pair[0], tmp_path / "out", to="megatron")
    assert verify(pair[0], pair[1]).differences == []


def test_what_is_left_of_a_checkpoint_beside_safetensors(pair):
    (pair[0] / "trainer").mkdir()
    (pair[0] / "trainer" / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (pair[0] / "latest_checkpointed_iteration.txt").write_text("100")
    assert verify(pair[0], pair[1]).differences == []


def test_a_checkpoint_without_its_index_beside_safetensors(pair, tmp_path):
    (pair[1] / ".metadata").unlink()
    shutil.copy(pair[1] / "metadata.json", pair[0])
    with pytest.raises(UserError, match=r"has no .metadata: it is not a torch_dist checkpoint, or was not finished"):
        convert(pair[0], tmp_path / "out")


def megatron_lm_folder(megatron, folder, *, content, name):
    folder.mkdir()
    shutil.copytree(megatron, folder / name)
    (folder / "latest_checkpointed_iteration.txt").write_text(content)
    return folder


@pytest.mark.parametrize(("content", "name"), [("100\n", "iter_0000100"), ("release", "release")])
def test_the_newest_checkpoint_of_megatron_lm(pair, tmp_path, content, name):
    folder = megatron_lm_folder(pair[1], tmp_path / "run", content=content, name=name)
    convert(folder, tmp_path / "out")
    assert verify(folder, tmp_path / "out").differences == verify(pair[0], tmp_path / "out").differences == []


@pytest.mark.parametrize("content", ["", "abc", "-1", "../iter_0000100", "99", "9" * 5000, "release"])
def test_no_newest_checkpoint_of_megatron_lm(pair, tmp_path, capsys, content):
    folder = megatron_lm_folder(pair[1], tmp_path / "run", content=content, name="iter_0000100")
    assert main(["convert", str(folder), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "latest_checkpointed_iteration.txt names" in said and said.count("\n") == 1 and len(said) < 500


def test_wrong_direction_is_refused(pair, tmp_path):
    with pytest.raises(UserError, match=r"--to hf needs a Megatron checkpoint, and .* is a Hugging Face folder"):
        convert(pair[0], tmp_path / "out", to="hf")
    with pytest.raises(UserError, match=r"--to megatron needs a Hugging Face folder, and .* is a Megatron checkpoint"):
        convert(pair[1], tmp_path / "out", to="megatron")


def test_a_destination_that_is_not_empty(pair, tmp_path):
    with pytest.raises(UserError, match=r"megatron exists and is not an empty folder"):
        convert(pair[0], pair[1])
    (tmp_path / "empty").mkdir()
    convert(pair[0], tmp_path / "empty")
    assert verify(pair[0], tmp_path / "empty").differences == []


@pytest.mark.parametrize("destination", ["/", "loop", "null"])
def test_destinations_that_are_refused(pair, tmp_path, capsys, destination):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "null").symlink_to("/dev/null")
    before = sorted(tmp_path.rglob("*"))
    assert main(["convert", str(pair[0]), str(tmp_path / destination)]) == 2
    said = capsys.readouterr().err
    assert "exists and is not an empty folder" in said and said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


def test_a_destination_that_is_a_mount_point(pair, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "out")
    with pytest.raises(UserError, match=rf"{tmp_path / 'out'} is a mount point, .*; write into a folder inside it"):
        convert(pair[0], tmp_path / "out")
    assert not list(tmp_path.glob("out*/*")), "something was written"


def test_a_destination_below_a_file(pair, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=rf"{tmp_path / 'file'} is not a folder, so .*file/out cannot be written"):
        convert(pair[0], tmp_path / "file" / "out")


def test_another_configuration_for_a_hugging_face_folder(pair, tmp_path):
    for read in (
        lambda: convert(pair[0], tmp_path / "out", config_folder=pair[1]),
        lambda: verify(pair[0], pair[0], config_folder=pair[1]),
        lambda: open_model(pair[0], pair[1]),
    ):
        with pytest.raises(UserError, match=r"is a Hugging Face folder that has its own .*; leave --config out"):
            read()
    assert not list(tmp_path.glob("out*"))
    assert verify(*pair, config_folder=pair[0]).differences == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_topk_prob": False}, r"moe_router_pre_softmax True, and .*config.json False; leave --config out, or"),
        ({"rms_norm_eps": 0.1}, r"layernorm_epsilon 0.1, and .*megatron/config.json 1e-06; leave --config out, or"),
    ],
)
def test_a_configuration_that_contradicts_the_checkpoints_own(pair, tmp_path, changes, message):
    edit_json(pair[0] / "config.json", lambda config: config.update(torch_dtype="float16", bos_token_id=5))
    assert verify(*pair, config_folder=pair[0]).differences == []
    edit_json(pair[0] / "config.json", lambda config: config.update(changes))
    with pytest.raises(UserError, match=message):
        convert(pair[1], tmp_path / "out", config_folder=pair[0])
    (pair[1] / "config.json").write_text('{"of": "another program"}')
    convert(pair[1], tmp_path / "out", config_folder=pair[0])


def test_a_source_that_links_to_itself(tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    assert main(["convert", str(tmp_path / "loop"), str(tmp_path / "out")]) == 2
    assert f"there is no folder {tmp_path / 'loop'}" in capsys.readouterr().err


def run_as_nobody(*arguments):
    """Runs the command line as a user without rights, because root may write anywhere."""
    program = (
        "import os, sys; from megatron_sspo.__main__ import main; import torch\n"
        "import megatron_sspo.weights.conversion.convert\n"
        "from megatron_sspo.cli.parser import parser; from megatron_sspo.processes import local; parser()\n"
        "if os.getuid() == 0: os.setegid(65534); os.seteuid(65534)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    return run_python("-c", program, "convert", *map(str, arguments), folder=Path(__file__).parents[2], timeout=120)


def test_no_permission(pair, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o005:  # pytest closes its folders to others
            folder.chmod(0o755)
    (tmp_path / "locked").mkdir(mode=0o555)
    done = run_as_nobody(pair[0], tmp_path / "locked" / "out")
    assert done.returncode == 2 and f"{tmp_path / 'locked'} cannot be written: no permission" in done.stderr
    (pair[0] / HFFolder(pair[0]).index["model.norm.weight"]).chmod(0)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    done = run_as_nobody(pair[0], tmp_path / "open" / "out")
    assert done.returncode == 2 and "Permission denied" in done.stderr and "Traceback" not in done.stderr


def test_a_disk_that_is_too_small(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(convert_module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1000))
    with pytest.raises(UserError, match=r"too full: the conversion needs 59\.7 kB, and 1\.0 kB are free"):
        convert(pair[0], tmp_path / "out")
    assert not list(tmp_path.glob("out*")), "something was written"


def content_of(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_destination_inside_a_source(pair, tmp_path):
    hf, megatron = pair
    (tmp_path / "link").symlink_to(hf)
    sources = [hf, hf, hf, hf, tmp_path / "link"]
    inside = [hf / "out", hf, tmp_path / "link", tmp_path / "link" / "out", hf / "a" / "b"]
    before = content_of(tmp_path)
    for source, destination in zip(sources, inside, strict=True):
        with pytest.raises(UserError, match=r"would be written into .*, which is read; write somewhere else"):
            convert(source, destination)
    with pytest.raises(UserError, match=rf"would be written into {hf}, which is read"):
        convert(megatron, hf / "out", config_folder=hf)
    assert content_of(tmp_path) == before


def test_unreadable_tokenizer_is_reported_before_anything_is_written(pair, tmp_path):
    (pair[1] / "tokenizer.json").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"cannot read .*tokenizer.json: No such file .*; repair or remove it"):
        convert(pair[1], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b'{"added_tokens": ['),
        ("generation_config.json", b"\xff"),
        ("chat_template.jinja", b"\xe9"),
        ("additional_chat_templates/tools.jinja", b"\xe9"),
    ],
)
@pytest.mark.parametrize("kind", [0, 1])
def test_a_damaged_file_beside_the_weights_is_not_copied(pair, tmp_path, name, content, kind):
    file = pair[kind] / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"{file} is not"):
        convert(pair[kind], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("kind", [0, 1])
def test_code_of_a_model_is_refused(pair, tmp_path, kind):
    (pair[kind] / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tokenization_x.X", null]}}')
    with pytest.raises(UserError, match=r"tokenizer_config.json names code of its own \(auto_map\)"):
        convert(pair[kind], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("kind", [0, 1])
def test_a_refused_configuration_is_named_with_its_folder(pair, tmp_path, kind):
    edit_json(pair[kind] / "config.json", lambda config: config.update(hidden_act="gelu"))
    with pytest.raises(UserError, match=rf"^{pair[kind]}: config.json has hidden_act 'gelu', which is not"):
        convert(pair[kind], tmp_path / "out")
    edit_json(pair[kind] / "config.json", lambda config: config.update(model_type="gpt2"))
    with pytest.raises(UserError, match=rf"^{pair[kind]}: model_type 'gpt2' of config.json is not supported"):
        convert(pair[kind], tmp_path / "out")
