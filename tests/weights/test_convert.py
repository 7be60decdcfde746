"""Conversions: to the bit in both directions, strict, resumable, and never half there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_sspo.__main__ import main
from megatron_sspo.errors import UserError
from megatron_sspo.weights import convert as convert_module
from megatron_sspo.weights import copy as copy_module
from megatron_sspo.weights import plan as plan_module
from megatron_sspo.weights.convert import convert
from megatron_sspo.weights.hf_folder import HFFolder
from megatron_sspo.weights.open_folder import open_folder
from megatron_sspo.weights.plan import make_plan
from megatron_sspo.weights.torch_dist import read_index
from megatron_sspo.weights.verify import verify
from tests.weights.tiny_checkpoints import KINDS, save


@pytest.fixture
def small_blocks(monkeypatch):
    """Every size by which tensors and files are cut, so small that all of them are."""
    monkeypatch.setattr(plan_module, "FILE_BYTES", 20_000)
    monkeypatch.setattr(plan_module, "PIECE_BYTES", 700)
    monkeypatch.setattr(copy_module, "BLOCK_BYTES", 300)
    monkeypatch.setattr(copy_module, "_STEP_BYTES", 600)


@pytest.fixture
def pair(checkpoint, tmp_path):
    """A Hugging Face folder and the Megatron checkpoint that was made of it, both free to be damaged."""
    save("qwen3_moe", tmp_path / "hf", max_shard_size="20KB")
    convert(tmp_path / "hf", tmp_path / "megatron")
    return tmp_path / "hf", tmp_path / "megatron"


def tensors(path):
    found = {}
    for file in path.glob("*.safetensors"):
        found |= load_file(file)
    return found


def assert_same_bits(first, second):
    a, b = tensors(first), tensors(second)
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype and tensor.shape == b[name].shape
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), b[name].reshape(-1).view(torch.uint8)), name


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_to_the_bit(checkpoint, tmp_path, kind):
    there = convert(checkpoint(kind), tmp_path / "megatron")
    back = convert(tmp_path / "megatron", tmp_path / "hf")
    assert (there.direction, back.direction) == ("megatron", "hf")
    assert there.num_bytes == back.num_bytes == there.bytes_copied == back.bytes_copied
    assert_same_bits(checkpoint(kind), tmp_path / "hf")
    assert HFFolder(tmp_path / "hf").config == HFFolder(checkpoint(kind)).config
    assert verify(checkpoint(kind), tmp_path / "megatron").differences == []


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_in_small_blocks(checkpoint, tmp_path, small_blocks, kind):
    convert(checkpoint(kind), tmp_path / "megatron")
    assert max(len(tensor.pieces) for tensor in read_index(tmp_path / "megatron").values()) >= 10
    assert len(list((tmp_path / "megatron").glob("__0_*.distcp"))) > 1
    convert(tmp_path / "megatron", tmp_path / "hf")
    assert len(list((tmp_path / "hf").glob("model-*.safetensors"))) > 1
    assert_same_bits(checkpoint(kind), tmp_path / "hf")


def test_bits_that_are_not_numbers_survive(tmp_path, checkpoint):
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
def test_another_dtype_where_it_is_asked_for(checkpoint, tmp_path, direction):
    there, back = (torch.bfloat16, None) if direction == "there" else (None, torch.bfloat16)
    convert(checkpoint("qwen2"), tmp_path / "megatron", dtype=there)
    convert(tmp_path / "megatron", tmp_path / "hf", dtype=back)
    expected = tensors(checkpoint("qwen2"))
    for name, tensor in tensors(tmp_path / "hf").items():
        assert torch.equal(tensor, expected[name].bfloat16())
    assert HFFolder(tmp_path / "hf").config["dtype"] == "bfloat16"


def test_tokenizer_and_template_come_along(checkpoint, tmp_path):
    shutil.copytree(checkpoint("llama"), tmp_path / "hf")
    names = ("tokenizer.json", "chat_template.jinja", "generation_config.json")
    for name in names:
        (tmp_path / "hf" / name).write_text(f'{{"of": "{name}"}}')
    convert(tmp_path / "hf", tmp_path / "megatron")
    convert(tmp_path / "megatron", tmp_path / "back")
    for name in names:
        assert (tmp_path / "back" / name).read_text() == f'{{"of": "{name}"}}'


@pytest.mark.parametrize("kind", ["qwen3_moe", "llama_tied"])
def test_the_manifest_says_what_is_where(checkpoint, tmp_path, small_blocks, kind):
    convert(checkpoint(kind), tmp_path / "megatron")
    convert(tmp_path / "megatron", tmp_path / "hf")
    manifest = json.loads((tmp_path / "hf" / "manifest.json").read_text())
    assert manifest["source"] == str(tmp_path / "megatron") and manifest["format"] == "safetensors"
    listed = {entry["name"]: entry for entry in manifest["tensors"]}
    found = tensors(tmp_path / "hf")
    assert listed.keys() == found.keys()
    for name, tensor in found.items():
        entry = listed[name]
        assert entry["shape"] == list(tensor.shape) and entry["dtype"] == "float32"
        assert entry["crc32"] == f"{zlib.crc32(tensor.contiguous().numpy().tobytes()):08x}"
        assert name in load_file(tmp_path / "hf" / entry["file"])
    manifest = json.loads((tmp_path / "megatron" / "manifest.json").read_text())
    used = [name for entry in manifest["tensors"] for name in entry["sources"]]
    assert set(used) == set(found)
    whole = [entry for entry in manifest["tensors"] if entry["name"] == "decoder.final_layernorm.weight"]
    assert whole[0]["crc32"] == f"{zlib.crc32(found['model.norm.weight'].numpy().tobytes()):08x}"


def test_a_copy_of_a_tied_embedding_may_be_there_if_it_is_one(checkpoint, tmp_path):
    shutil.copytree(checkpoint("llama_tied"), tmp_path / "hf")
    found = tensors(tmp_path / "hf")
    found["lm_head.weight"] = found["model.embed_tokens.weight"].clone()
    save_file(found, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    convert(tmp_path / "hf", tmp_path / "megatron")
    found["lm_head.weight"][-1, -1] += 1
    save_file(found, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"ties lm_head\.weight to model\.embed_tokens\.weight"):
        convert(tmp_path / "hf", tmp_path / "again")


# ------------------------------------------------------------------ what is wrong is said before anything is written


def change(file, **updates):
    """Replaces tensors of a safetensors file; None removes one."""
    found = load_file(file) | {name.replace("__", "."): tensor for name, tensor in updates.items()}
    save_file({name: t for name, t in found.items() if t is not None}, file, metadata={"format": "pt"})


def edit_json(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


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


def mixed_dtypes(folder):
    name = "model.layers.0.self_attn.q_proj.weight"
    file = HFFolder(folder).index[name]
    change(folder / file, **{name: load_file(folder / file)[name].bfloat16()})
    return "q_proj.weight, .*k_proj.weight.* differ in dtype"


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


def index_that_acts(folder):
    (folder / ".metadata").write_bytes(b"cos\nsystem\n(S'touch " + str(folder / "hacked").encode() + b"'\ntR.")
    return r"\.metadata is damaged .*it names os.system"


def unfinished(folder):
    (folder / ".metadata").unlink()
    return "has no .metadata: it is no torch_dist checkpoint, or was not finished"


def another_format(folder):
    edit_json(folder / "metadata.json", lambda config: config.update(sharded_backend="zarr"))
    return "is a zarr checkpoint, which is not supported"


@pytest.mark.parametrize(
    "damage",
    [
        truncated_records,
        missing_records,
        another_model,
        left_over,
        not_there,
        no_config,
        index_that_acts,
        unfinished,
        another_format,
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
    with pytest.raises(UserError, match=rf"cannot read model.norm.weight from {file}: .* damaged"):
        convert(pair[1], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_config_from_elsewhere(pair, tmp_path):
    (pair[1] / "config.json").unlink()
    convert(pair[1], tmp_path / "out", companions=pair[0])
    assert_same_bits(pair[0], tmp_path / "out")


def test_the_other_direction_is_refused_where_one_is_asked_for(pair, tmp_path):
    with pytest.raises(UserError, match="is a Hugging Face folder, and a Megatron checkpoint is to be converted"):
        convert(pair[0], tmp_path / "out", to="hf")
    with pytest.raises(UserError, match="is a Megatron checkpoint, and a Hugging Face folder is to be converted"):
        convert(pair[1], tmp_path / "out", to="megatron")


@pytest.mark.parametrize("num_threads", [0, -1])
def test_fewer_threads_than_one(pair, tmp_path, capsys, num_threads):
    assert main(["convert", str(pair[0]), str(tmp_path / "out"), "--threads", str(num_threads)]) == 2
    said = capsys.readouterr().err
    assert f"--threads is {num_threads}; it must be 1 or more" in said and said.count("\n") == 1
    assert not list(tmp_path.glob("out*")), "something was written"


def test_a_destination_that_is_not_empty(pair, tmp_path):
    with pytest.raises(UserError, match=r"megatron exists and is not an empty folder"):
        convert(pair[0], pair[1])
    (tmp_path / "empty").mkdir()
    convert(pair[0], tmp_path / "empty")
    assert verify(pair[0], tmp_path / "empty").differences == []


def run_as_nobody(*arguments):
    """The command line, as a user without rights; root may write anywhere."""
    program = (
        "import os, sys; from megatron_sspo.__main__ import main; import torch, megatron_sspo.weights.convert\n"
        "if os.getuid() == 0: os.setegid(65534); os.seteuid(65534)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_no_permission(pair, tmp_path):
    for folder in (tmp_path, *tmp_path.parents[:2]):
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
    with pytest.raises(UserError, match=r"too full: the conversion needs 0\.0 GB"):
        convert(pair[0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up(pair, tmp_path, monkeypatch):
    """Nothing that was done is lost, and the same command goes on."""
    write, written = os.pwrite, []

    def full(descriptor, data, offset):
        written.append(len(data))
        if sum(written) > 30_000:
            raise OSError(28, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match=r"cannot write .*__0_0.distcp: No space left on device; what is done is kept"):
        convert(pair[0], tmp_path / "out", num_threads=1)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(os, "pwrite", write)
    summary = convert(pair[0], tmp_path / "out")
    assert 0 < summary.bytes_copied < summary.num_bytes
    assert verify(pair[0], tmp_path / "out").differences == []


def test_another_conversion_in_the_same_place(pair, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise UserError("stopped")

    with monkeypatch.context() as patched, pytest.raises(UserError, match="stopped"):
        patched.setattr(copy_module.Copy, "run", fail)
        convert(pair[0], tmp_path / "out")
    with pytest.raises(UserError, match="unfinished conversion of other files or with other options"):
        convert(pair[0], tmp_path / "out", dtype=torch.bfloat16)
    file = next(iter(pair[0].glob("*.safetensors")))
    os.utime(file, (0, 0))  # somebody touched the source
    with pytest.raises(UserError, match="unfinished conversion of other files or with other options"):
        convert(pair[0], tmp_path / "out")


def test_two_at_once(pair, tmp_path, monkeypatch):
    run = copy_module.Copy.run

    def while_another_starts(self, num_threads):
        with pytest.raises(UserError, match=r"another conversion writes .*out\.partial at this moment"):
            convert(pair[0], tmp_path / "out")
        monkeypatch.setattr(copy_module.Copy, "run", run)
        return run(self, num_threads)

    monkeypatch.setattr(copy_module.Copy, "run", while_another_starts)
    convert(pair[0], tmp_path / "out")
    assert verify(pair[0], tmp_path / "out").differences == []


# ------------------------------------------------------------------ kills


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Some hundred megabytes of a model, so that a kill finds the conversion at work."""
    folder = tmp_path_factory.mktemp("large")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    model.save_pretrained(folder / "hf")
    convert(folder / "hf", folder / "megatron")
    return folder


def notes(partial):
    """Bytes that the journal of an unfinished conversion has noted, in units of a row."""
    lines = (partial / "journal.jsonl").read_text().splitlines() if (partial / "journal.jsonl").exists() else []
    return [line for line in lines if '"tensor"' in line]


def kill_when_noted(command, partial, num_notes):
    """Starts a conversion and kills it once it has noted so many steps. Returns whether it was still running."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and len(notes(partial)) < num_notes:
        time.sleep(0.001)
    was_running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    return was_running


@pytest.mark.slow
@pytest.mark.parametrize("source", ["hf", "megatron"])
def test_killed_anywhere_it_goes_on_and_the_result_is_the_same(large, tmp_path, source):
    partial, out = tmp_path / "out.partial", tmp_path / "out"
    command = [sys.executable, "-m", "megatron_sspo", "convert", str(large / source), str(out), "--threads", "2"]
    kills = 0
    for num_notes in (1, 7, 12):
        before = notes(partial)
        kills += kill_when_noted(command, partial, len(before) + num_notes if before else num_notes)
        if out.exists():
            break
        assert {json.loads(line)["tensor"] for line in before} <= {
            json.loads(line)["tensor"] for line in notes(partial)
        }
    assert kills >= 2, "the conversion was never caught at work"
    assert not out.exists()
    summary = convert(large / source, out)
    assert summary.bytes_copied < summary.num_bytes
    assert verify(large / "hf", out).differences == []
    assert not partial.exists()
    fresh = convert(large / source, tmp_path / "fresh")
    assert fresh.bytes_copied == fresh.num_bytes
    for file in sorted(Path(tmp_path / "fresh").iterdir()):
        assert file.read_bytes() == (out / file.name).read_bytes(), file.name


def test_what_was_done_is_not_done_again(pair, tmp_path, monkeypatch, small_blocks):
    """Stopped after every number of writes in turn: the next attempt reads and writes nothing that was noted."""
    write = os.pwrite
    for allowed in range(1, 200, 13):
        out = tmp_path / f"out{allowed}"
        count = 0

        def limited(descriptor, data, offset, allowed=allowed):
            nonlocal count
            count += 1
            if count > allowed:
                raise OSError(5, "Input/output error")
            return write(descriptor, data, offset)

        monkeypatch.setattr(os, "pwrite", limited)
        with pytest.raises(UserError, match="Input/output error"):
            convert(pair[0], out, num_threads=2)
        monkeypatch.setattr(os, "pwrite", write)
        last = {}
        for line in notes(out.with_name(f"{out.name}.partial")):
            entry = json.loads(line)
            last[entry["tensor"]] = entry["rows"]
        plan = make_plan(open_folder(pair[0]), None)
        noted = sum(rows * plan.targets[number].row_bytes for number, rows in last.items())
        summary = convert(pair[0], out)
        assert summary.bytes_copied == summary.num_bytes - noted
        assert verify(pair[0], out).differences == []


def test_no_file_stays_open(pair, tmp_path):
    convert(pair[0], tmp_path / "again")
    convert(pair[1], tmp_path / "back")
    verify(*pair)
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert [path for path in opened if str(tmp_path) in path] == []


def test_verify_says_what_differs(pair, tmp_path):
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    file = pair[0] / HFFolder(pair[0]).index[name]
    content = load_file(file)
    content[name].view(torch.uint8)[0, 0] ^= 1
    save_file(content, file, metadata={"format": "pt"})
    assert verify(*pair).differences == [f"{name} differs in 1 of 768 bytes"]
    shorter = tmp_path / "shorter"
    shutil.copytree(pair[0], shorter)
    edit_json(shorter / "config.json", lambda config: config)
    index = HFFolder(shorter).index
    change(shorter / index["model.norm.weight"], model__norm__weight=torch.zeros(16).half())
    assert verify(pair[0], shorter).differences == [
        "model.norm.weight is torch.float32 [16] and torch.float16 [16]",
    ]
