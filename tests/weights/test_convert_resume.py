"""Conversions that are stopped can be continued, and an incomplete one is never taken for a complete one."""

import errno
import fcntl
import json
import os
import time
from pathlib import Path

import pytest
import torch
from isal.isal_zlib import crc32

from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion import convert as convert_module
from megatron_sspo.weights.conversion import copy as copy_module
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.plan import make_plan
from megatron_sspo.weights.conversion.verify import verify
from megatron_sspo.weights.formats import destination as destination_module
from megatron_sspo.weights.formats.open_folder import open_folder
from tests.forking import Python


def test_a_disk_that_fills_up(pair, tmp_path, monkeypatch):
    """The copied bytes are kept, and the same command continues."""
    write, written = os.pwrite, []

    def full(descriptor, data, offset):
        written.append(len(data))
        if sum(written) > 30_000:
            raise OSError(28, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match=r"cannot write .*__0_0.distcp: No space left on device; finished work is kept"):
        convert(pair[0], tmp_path / "out", num_threads=1)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(os, "pwrite", write)
    summary = convert(pair[0], tmp_path / "out")
    assert 0 < summary.bytes_copied < summary.num_bytes
    assert verify(pair[0], tmp_path / "out").differences == []


def test_another_conversion_in_the_same_place(pair, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(copy_module.TensorCopier, "run", fail)
        convert(pair[0], tmp_path / "out")
    with pytest.raises(UserError, match="unfinished conversion of other files or with other options"):
        convert(pair[0], tmp_path / "out", dtype=torch.bfloat16)
    file = next(iter(pair[0].glob("*.safetensors")))
    os.utime(file, (0, 0))  # the source was modified
    with pytest.raises(UserError, match="unfinished conversion of other files or with other options"):
        convert(pair[0], tmp_path / "out")


def test_two_conversions_at_once(pair, tmp_path, monkeypatch):
    run = copy_module.TensorCopier.run

    def while_another_starts(self, num_threads):
        with pytest.raises(UserError, match=r"another conversion writes .*out\.partial at this moment"):
            convert(pair[0], tmp_path / "out")
        monkeypatch.setattr(copy_module.TensorCopier, "run", run)
        return run(self, num_threads)

    monkeypatch.setattr(copy_module.TensorCopier, "run", while_another_starts)
    convert(pair[0], tmp_path / "out")
    assert verify(pair[0], tmp_path / "out").differences == []


def test_a_file_system_without_locks(pair, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    convert(pair[0], tmp_path / "out")
    assert verify(pair[0], tmp_path / "out").differences == []


def test_a_stop_at_any_step_of_the_end(pair, tmp_path, monkeypatch):
    """The same command finishes what was stopped between two steps after the copy, and copies nothing again."""
    calls, stop_before = 0, 0

    def counted(step):
        def step_or_stop(*arguments, **options):
            nonlocal calls
            if calls == stop_before:
                raise KeyboardInterrupt
            calls += 1
            return step(*arguments, **options)

        return step_or_stop

    published = []
    while True:
        out = tmp_path / f"out{stop_before}"
        calls = 0
        with monkeypatch.context() as patched:
            patched.setattr(destination_module, "flush_to_disk", counted(destination_module.flush_to_disk))
            for name in ("rename", "unlink"):
                patched.setattr(Path, name, counted(getattr(Path, name)))
            try:
                convert(pair[0], out, num_threads=1)
                break
            except KeyboardInterrupt:
                pass
        published.append(out.exists())
        summary = convert(pair[0], out)
        assert summary.bytes_copied == 0 or stop_before == 0  # the first of these steps is that of a new journal
        assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in pair[1].iterdir())
        assert not out.with_name(f"{out.name}.partial").exists()
        assert verify(pair[0], out).differences == []
        stop_before += 1
    assert published.count(True) == 3 and not published[0]


def test_the_notes_of_another_conversion_in_a_finished_folder(pair, tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(convert_module, "_remove_notes", stop_after(0))
        convert(pair[0], tmp_path / "out")
    assert verify(pair[0], tmp_path / "out").differences == []
    with pytest.raises(UserError, match="out exists and is not an empty folder"):
        convert(pair[0], tmp_path / "out", dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: (out / "__0_0.distcp").unlink(),
        lambda out: os.truncate(out / "__0_0.distcp", 1000),
        lambda out: (out / "config.json").write_text("{}"),
        lambda out: (out / "common.pt").unlink(),
        lambda out: (out / "manifest.json").unlink(),
        lambda out: (out / "tokenizer.json").write_text("[]"),
    ],
)
def test_a_finished_folder_that_was_changed_meanwhile(pair, tmp_path, monkeypatch, damage):
    (pair[0] / "tokenizer.json").write_text("{}")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(convert_module, "_remove_notes", stop_after(0))
        convert(pair[0], tmp_path / "out")
    damage(tmp_path / "out")
    with pytest.raises(UserError, match="out exists and is not an empty folder"):
        convert(pair[0], tmp_path / "out")


def notes(partial):
    """Returns the steps that the journal of an unfinished conversion has noted, one per line."""
    lines = (partial / "journal.jsonl").read_text().splitlines() if (partial / "journal.jsonl").exists() else []
    return [line for line in lines if '"tensor"' in line]


def test_noted_steps_are_not_repeated(pair, tmp_path, monkeypatch, small_blocks):
    """Stops after different numbers of writes: the next attempt reads and writes nothing that was noted."""
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


def replace_file(partial, content):
    file = partial / "__0_0.distcp"
    file.write_bytes(content(file.read_bytes()))


def append_to_journal(partial, **step):
    with (partial / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({"tensor": 12, "rows": 1, "crc": 0, "finished": False} | step) + "\n")


@pytest.mark.parametrize(
    "damage",
    [
        lambda partial: (partial / "__0_0.distcp").unlink(),
        lambda partial: replace_file(partial, lambda content: content[:1000]),
        lambda partial: append_to_journal(partial, tensor=999),
        lambda partial: append_to_journal(partial, tensor=[1]),
        lambda partial: append_to_journal(partial, rows="many"),
        lambda partial: append_to_journal(partial, rows=10**9),
        lambda partial: append_to_journal(partial, rows=-1),
        lambda partial: append_to_journal(partial, rows=0, finished=True),
    ],
    ids=[
        "no file",
        "short file",
        "unknown tensor",
        "no tensor",
        "no number",
        "too many rows",
        "too few rows",
        "no rows",
    ],
)
def test_steps_that_cannot_be_continued_are_repeated(pair, tmp_path, monkeypatch, damage):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(copy_module, "crc32", stop_after(10))
        convert(pair[0], tmp_path / "out", num_threads=1)
    assert len(notes(tmp_path / "out.partial")) > 5
    damage(tmp_path / "out.partial")
    convert(pair[0], tmp_path / "out", num_threads=1)
    assert verify(pair[0], tmp_path / "out").differences == []


def stop_after(calls):
    """Returns a CRC-32 that stops the conversion after a number of calls."""
    left = iter(range(calls))

    def crc32_or_stop(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return crc32(*arguments)

    return crc32_or_stop


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model of some hundred megabytes, so that a kill hits the conversion while it runs."""
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


def kill_when_noted(command, partial, num_notes):
    """Starts a conversion and kills it once `num_notes` steps are noted. Returns whether it was still running."""
    process = Python(*command, folder=partial.parent, environment=os.environ)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and len(notes(partial)) < num_notes:
        time.sleep(0.001)
    was_running = process.poll() is None
    process.kill()
    process.wait(timeout=30)
    return was_running


@pytest.mark.slow
@pytest.mark.parametrize("source", ["hf", "megatron"])
def test_killed_conversion_continues_to_the_same_result(large, tmp_path, source):
    partial, out = tmp_path / "out.partial", tmp_path / "out"
    command = ["-m", "megatron_sspo", "convert", str(large / source), str(out), "--threads", "2"]
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
