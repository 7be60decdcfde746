"""The files that travel with a model's weights: configuration, tokenizer and chat template."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.reading import read_json, read_text

# All other files of a folder hold weights or describe the old ones.
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
    "*.model",  # of SentencePiece: tokenizer.model, spiece.model, sentencepiece.bpe.model
    "LICENSE*",
)

MTP = "num_nextn_predict_layers"  # the number of layers after the model's own that predict tokens for a server to check


def copy_tokenizer_files(source: Path, folder: Path) -> None:
    """Copies the companion files of a model, except for config.json."""
    for file in _files(source):
        target = folder / file.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        with os_errors_as_user_errors(folder):
            shutil.copyfile(file, target)


def check_text_files(source: Path) -> None:
    """Raises UserError if a file of JSON or a template that travels with the weights is damaged, or names code."""
    for file in _files(source):
        if file.suffix == ".jinja":
            read_text(file)
        if file.suffix == ".json" and read_json(file).get("auto_map"):
            raise UserError(
                f"{file} names code of its own (auto_map), which is neither run nor copied; save the tokenizer with "
                "a class of Transformers"
            )


def _files(source: Path) -> list[Path]:
    return sorted({file for pattern in _COPIED for file in source.glob(pattern) if file.is_file()})


def write_config(config: dict[str, Any], folder: Path, dtypes: Collection[torch.dtype]) -> None:
    """Writes config.json, without MTP layers or code. If all matrices have one dtype, the dtype field is set to it."""
    config = {**config, **({MTP: 0} if MTP in config else {})}
    config.pop("auto_map", None)
    if len(dtypes) == 1:
        # Transformers 5 writes `dtype`, earlier versions `torch_dtype`; both read the latter.
        fields = [field for field in ("dtype", "torch_dtype") if field in config] or ["torch_dtype"]
        config.update(dict.fromkeys(fields, str(*dtypes).removeprefix("torch.")))
    # in ASCII, because a path that is not UTF-8 has lone surrogates, which UTF-8 cannot encode
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
