"""Loading of a model's tokenizer."""

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


@pytest.mark.parametrize("config", [None, {"model_type": "qwen2"}])
def test_texts_are_split_as_the_file_says(folder: Path, config: dict | None) -> None:
    """Transformers 5 splits by Qwen's rules in every model of the type qwen2, and drops what is then not known."""
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    text = "12 + 34"
    assert load_tokenizer(folder).decode(load_tokenizer(folder)(text)["input_ids"]) == text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", {"model_type": "qwen3_moe", "vocab_size": -1.5}, r"Transformers cannot use .*config\.json"),
        ("config.json", None, "is not a Hugging Face folder: it has no config.json"),
        ("tokenizer.json", None, "has no tokenizer that can be read .*: copy tokenizer.json"),
        ("tokenizer.json", [], "has no tokenizer that can be read"),
        ("tokenizer_config.json", {"model_max_length": "x"}, "has no tokenizer that can be read"),
    ],
)
def test_a_missing_or_damaged_file(folder: Path, name: str, content: object, message: str) -> None:
    if content is None:
        (folder / name).unlink()
        if name == "tokenizer.json":
            (folder / "tokenizer_config.json").unlink()
    else:
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as raised:
        load_tokenizer(folder)
    assert "\n" not in str(raised.value)
