"""The files that travel with a model's weights: configuration, tokenizer and chat template."""

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.reading import open_file, read_json, read_text

_LICENSE = "LICENSE*"
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
    _LICENSE,
)
_SUFFIXES = (".json", ".txt", ".model", ".jinja")  # a folder with such a suffix is an error, another folder is skipped


def copy_tokenizer_files(source: Path, folder: Path) -> None:
    """Copies the companion files of a model, except for config.json.

    Raises:
        UserError: see `check_tokenizer_files`.
    """
    for file in check_tokenizer_files(source):
        target = folder / file.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        with os_errors_as_user_errors(folder):
            shutil.copyfile(file, target)


def check_tokenizer_files(source: Path) -> list[Path]:
    """Returns the files that travel with the weights, except for config.json.

    Raises:
        UserError: one of them cannot be read, or is a pipe, a folder or a broken link.
    """
    # `glob` skips a broken link of a name
    named = {source / name for name in _COPIED if os.path.lexists(source / name)}
    found = sorted(named.union(*map(source.glob, _COPIED)))
    files = [file for file in found if not (file.is_dir() and file.suffix not in _SUFFIXES)]
    for file in files:
        try:
            open_file(file).close()
        except OSError as error:
            raise UserError(f"cannot read {file}: {error.strerror}; repair or remove it") from error
    return files


def check_text_files(source: Path) -> None:
    """Raises UserError if one of the files that travel with the weights is cut off, is no text, or names code.

    Only files that Transformers reads as JSON or as text are read; a license is copied in any encoding.
    """
    for file in check_tokenizer_files(source):
        if file.match(_LICENSE):
            continue
        if file.suffix == ".json":
            if read_json(file).get("auto_map"):
                raise UserError(
                    f"{file} names code of its own (auto_map), which is neither run nor copied; save the tokenizer "
                    "with a class of Transformers"
                )
        elif file.suffix in (".jinja", ".txt"):
            read_text(file)


def write_config(config: dict[str, Any], folder: Path, dtypes: Collection[torch.dtype]) -> None:
    """Writes config.json, see `config_text`."""
    (folder / "config.json").write_text(config_text(config, dtypes), encoding="utf-8")


def config_text(config: dict[str, Any], dtypes: Collection[torch.dtype]) -> str:
    """Returns the content of config.json. If all tensors have one dtype, the dtype field is set to it."""
    config = dict(config)
    if len(dtypes) == 1:
        # Transformers 5 writes `dtype`, earlier versions `torch_dtype`; both read the latter.
        fields = [field for field in ("dtype", "torch_dtype") if field in config] or ["torch_dtype"]
        config.update(dict.fromkeys(fields, str(*dtypes).removeprefix("torch.")))
    # in ASCII, because a path that is not UTF-8 has lone surrogates, which UTF-8 cannot encode
    return json.dumps(config, indent=2) + "\n"
