"""Loads the model's tokenizer."""

from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError, first_line
from megatron_sspo.weights.transformers_config import read_config, read_tokenizer


def load_tokenizer(model_path: Path) -> Any:
    """Loads the tokenizer of a Hugging Face folder; nothing is downloaded, and no code of the folder is run.

    Raises UserError if the folder does not exist, or holds no tokenizer that can be read and used.
    """
    if not (model_path / "config.json").exists():
        raise UserError(f"{model_path} is not a Hugging Face folder: it has no config.json; set model.path to one")
    try:
        found = read_tokenizer(model_path)
        found("1", add_special_tokens=False)  # of wrong settings, some are found by a use
        if len(found) <= len(getattr(found, "added_tokens_decoder", ())):  # Transformers makes one without files
            raise ValueError("it has no vocabulary")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        read_config(model_path)  # Transformers reads config.json first
        raise UserError(
            f"{model_path} has no tokenizer that can be read ({first_line(error)}): copy tokenizer.json and "
            "tokenizer_config.json of the model there"
        ) from error
    return found
