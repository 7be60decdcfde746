"""What travels with the weights of a model: its configuration, tokenizer and chat template."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.errors import UserError

# Everything else of a folder describes the old weights, or is weights.
_COPIED = (
    "generation_config.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "additional_chat_templates/*",
    "*.tiktoken",
    "LICENSE*",
)


def copy_companions(source: Path, folder: Path) -> None:
    """Copies what travels with the weights, except for config.json."""
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.is_file():
                target = folder / file.relative_to(source)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)


def write_config(config: dict[str, Any], folder: Path, dtypes: Collection[torch.dtype]) -> None:
    """Writes config.json. Where all tensors have one dtype, it is the one that config.json names."""
    config = dict(config)
    if len(dtypes) == 1:
        # Transformers 5 writes `dtype`, earlier versions `torch_dtype`; both read the latter.
        fields = [field for field in ("dtype", "torch_dtype") if field in config] or ["torch_dtype"]
        config.update(dict.fromkeys(fields, str(*dtypes).removeprefix("torch.")))
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """An object of a JSON file.

    Raises:
        UserError: it cannot be read, or is something else.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object")
    return content
