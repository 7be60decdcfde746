"""Damaged or missing tokenizers."""

import json
import shutil
from pathlib import Path

import pytest

from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.errors import UserError

SOUND = Path(__file__).parents[2] / "examples" / "tiny_moe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(SOUND, tmp_path / "model")


def test_a_sound_one(folder: Path) -> None:
    assert load_tokenizer(folder).encode("1")


def test_texts_are_split_as_the_file_says(folder: Path) -> None:
    """Transformers 5 splits by Qwen's rules in every model of the type qwen2, and drops what is then not known."""
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    text = "12 + 34"
    assert load_tokenizer(folder).decode(load_tokenizer(folder)(text)["input_ids"]) == text


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"null"),
        lambda path: path.write_bytes(b"[]"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_bytes(b'{"a":' * 100_000),
        lambda path: path.write_bytes(b'{"added_tokens": 3, "model": 4, "tokenizer_class": 5}'),
    ],
)
def test_damage(folder: Path, name: str, damage) -> None:
    if name == "config.json":  # only a part of it belongs to the tokenizer
        (folder / "tokenizer_config.json").unlink()
    (folder / name).unlink()
    damage(folder / name)
    with pytest.raises(UserError, match=r"model") as raised:
        load_tokenizer(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("tokenizer.json", b"\xef\xbb\xbf"),
        ("tokenizer_config.json", b"\xef\xbb\xbf"),
        ("tokenizer_config.json", b"{"),
        ("special_tokens_map.json", b"{"),
        ("chat_template.jinja", b"\xe9"),
    ],
)
def test_the_file_that_is_damaged_is_named(folder: Path, name: str, start: bytes) -> None:
    if name == "special_tokens_map.json":  # Transformers reads it without a tokenizer_config.json
        (folder / "tokenizer_config.json").unlink()
    sound = (folder / name).read_bytes() if (folder / name).exists() else b""
    (folder / name).write_bytes(start + sound)
    with pytest.raises(UserError, match=rf"{folder / name} is not") as raised:
        load_tokenizer(folder)
    assert "copy tokenizer.json" not in str(raised.value)


def test_a_wrong_value_in_a_sound_file_does_not_ask_for_the_file_that_is_there(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": 3}')
    with pytest.raises(UserError, match="replace its tokenizer files"):
        load_tokenizer(folder)


def test_no_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="has no tokenizer, or one without a vocabulary"):
        load_tokenizer(folder)


@pytest.mark.parametrize(("name", "value"), [("hidden_size", "64"), ("num_hidden_layers", None), ("vocab_size", -1.5)])
def test_a_wrong_size_is_not_blamed_on_the_tokenizer(folder: Path, name: str, value: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises(UserError, match=rf"Transformers cannot use .*config.json \(.*field '{name}'") as raised:
        load_tokenizer(folder)
    assert "\n" not in str(raised.value)


def test_a_setting_that_only_a_use_finds_wrong(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": "x"}))
    with pytest.raises(UserError, match="has no tokenizer that can be read"):
        load_tokenizer(folder)
