"""Conversions report what is wrong before anything is written."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_sspo.errors import UserError
from megatron_sspo.evaluation.model import open_model
from megatron_sspo.files.manifest import Manifest, checksums, files_of, write_manifest
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.verify import verify
from megatron_sspo.weights.formats.open_folder import open_folder
from tests.weights.folders import change, edit_json, file_of


@pytest.fixture
def updates(pair, tmp_path):
    """Two checkpoints of a run, of equal sizes and other weights."""
    for number, folder in ((40, pair[0]), (50, shutil.copytree(pair[0], tmp_path / "other"))):
        if number == 50:
            change(file_of(folder, "model.norm.weight"), model__norm__weight=torch.rand(16))
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
        (lambda old, new: (new / "trainer/__0_0.distcp").unlink(), "trainer/__0_0.distcp is missing"),
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


def test_padding_that_is_left_out_is_said(pair, tmp_path, capsys):
    edit_json(pair[0] / "config.json", lambda config: config.update(vocab_size=100))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        file = file_of(pair[0], name)
        change(file, **{name: torch.cat([load_file(file)[name], torch.zeros(3, 16)])})
    convert(pair[0], tmp_path / "padded")
    edit_json(tmp_path / "padded" / "config.json", lambda config: config.update(vocab_size=97))
    capsys.readouterr()
    convert(tmp_path / "padded", tmp_path / "out")
    assert "the last 3 of 100 rows of the vocabulary are left out" in capsys.readouterr().err
    assert verify(tmp_path / "padded", pair[1]).differences == []
    assert "the last 3 of 100 rows" in capsys.readouterr().err
    assert open_folder(tmp_path / "out").shapes()["model.embed_tokens.weight"] == (97, 16)


def test_what_is_left_of_a_checkpoint_beside_safetensors(pair):
    (pair[0] / "metadata.json").write_text('{"dataset": "of another program"}')
    (pair[0] / "trainer").mkdir()
    (pair[0] / "trainer" / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (pair[0] / "latest_checkpointed_iteration.txt").write_text("100")
    assert verify(pair[0], pair[1]).differences == []


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


def test_no_newest_checkpoint_of_megatron_lm(pair, tmp_path):
    folder = megatron_lm_folder(pair[1], tmp_path / "run", content="99", name="iter_0000100")
    with pytest.raises(UserError, match=r"iter_0000099 has no config.json"):
        convert(folder, tmp_path / "out")
    with pytest.raises(UserError, match=r"iter_0000099/.metadata is missing or damaged"):
        convert(folder, tmp_path / "out", config_folder=pair[0])


def test_wrong_direction_is_refused(pair, tmp_path):
    with pytest.raises(UserError, match=r"--to hf needs a Megatron checkpoint, and .* is a Hugging Face folder"):
        convert(pair[0], tmp_path / "out", to="hf")
    with pytest.raises(UserError, match=r"--to megatron needs a Hugging Face folder, and .* is a Megatron checkpoint"):
        convert(pair[1], tmp_path / "out", to="megatron")


def test_a_destination_that_is_not_empty(pair, tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    for destination in (pair[1], tmp_path / "null"):
        with pytest.raises(UserError, match=rf"{destination.name} exists and is not an empty folder"):
            convert(pair[0], destination)
    (tmp_path / "empty").mkdir()
    convert(pair[0], tmp_path / "empty")
    assert verify(pair[0], tmp_path / "empty").differences == []


def test_a_destination_below_a_file(pair, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=rf"cannot use {tmp_path / 'file'}"):
        convert(pair[0], tmp_path / "file" / "out")


@pytest.mark.parametrize("kind", [0, 1])
def test_a_configuration_for_a_folder_that_has_one(pair, tmp_path, kind):
    for read in (
        lambda: convert(pair[kind], tmp_path / "out", config_folder=tmp_path),
        lambda: verify(pair[kind], pair[kind], config_folder=tmp_path),
        lambda: open_model(pair[kind], tmp_path),
    ):
        with pytest.raises(UserError, match=r" has its own; leave --config out"):
            read()
    assert not list(tmp_path.glob("out*"))
    (pair[1] / "config.json").write_text('{"of": "another program"}')
    assert verify(*pair, config_folder=pair[0]).differences == []
