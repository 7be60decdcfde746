"""Loads the model's tokenizer."""

from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError, first_line, os_errors_as_user_errors
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.formats.companions import check_text_files
from megatron_sspo.weights.transformers_config import read_config, read_tokenizer


@os_errors_as_user_errors()
def load_tokenizer(model_path: Path) -> Any:
    """Loads the tokenizer of a Hugging Face folder; nothing is downloaded, and no code of the folder is run.

    Raises:
        UserError: the folder does not exist, or holds no tokenizer that can be read and used.
    """
    if not (model_path / "config.json").exists():
        raise UserError(f"{model_path} is not a Hugging Face folder: it has no config.json; set model.path to one")
    read_json(model_path / "config.json")
    try:
        found = read_tokenizer(model_path)
        found("1", add_special_tokens=False)  # of wrong settings, some are found by a use
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        read_config(model_path)  # Transformers reads config.json first
        check_text_files(model_path)
        is_there = (model_path / "tokenizer.json").exists()
        remedy = "replace its tokenizer files by those of the model" if is_there else "copy tokenizer.json there"
        raise UserError(f"{model_path} has no tokenizer that can be read ({first_line(error)}): {remedy}") from error
    if len(found) <= len(getattr(found, "added_tokens_decoder", ())):  # Transformers makes an empty one without files
        raise UserError(f"{model_path} has no tokenizer, or one without a vocabulary: copy tokenizer.json there")
    return found
