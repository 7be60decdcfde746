"""Damaged models: every command that reads one refuses it at once, in one sentence, and writes nothing."""

import shutil

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.weights.conversion.convert import convert
from tests.weights import damage
from tests.weights.tiny_checkpoints import save

# `verify` reads only tensors, and not what config.json says about them
_OF_NO_TENSORS = {
    name for name in damage.ALL if name in damage.CONFIG or name.startswith(("tokenizer.json", "merges.txt"))
}
_OF_NO_TENSORS |= {"config.json is an object", "dtype 'I32'"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "hf"
    save("qwen3_moe", folder, max_shard_size="20KB")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "hf")


@pytest.fixture(scope="module")
def whole_megatron(whole):
    convert(whole, whole.parent / "megatron")
    return whole.parent / "megatron"


@pytest.fixture
def megatron(whole_megatron, tmp_path):
    return shutil.copytree(whole_megatron, tmp_path / "megatron")


def assert_refused(capsys, tmp_path, *arguments):
    before = sorted(tmp_path.rglob("*"))
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("megatron-sspo: ") and said.count("\n") == 1 and len(said) < 2000, said
    assert sorted(tmp_path.rglob("*")) == before, "something was written"
    return said


@pytest.mark.parametrize("name", damage.ALL)
def test_convert(folder, tmp_path, capsys, name):
    damage.ALL[name](folder)
    assert_refused(capsys, tmp_path, "convert", folder, tmp_path / "out")


@pytest.mark.parametrize("name", sorted(damage.ALL.keys() - _OF_NO_TENSORS))
def test_verify(folder, whole, tmp_path, capsys, name):
    damage.ALL[name](folder)
    assert_refused(capsys, tmp_path, "verify", folder, whole)


_FOUND_LATER = "__0_0.distcp is nested"  # records are checked when they are read


@pytest.mark.parametrize("name", sorted(damage.MEGATRON.keys() - {_FOUND_LATER}))
def test_convert_of_megatron(megatron, tmp_path, capsys, name):
    damage.MEGATRON[name](megatron)
    assert_refused(capsys, tmp_path, "convert", megatron, tmp_path / "out")
