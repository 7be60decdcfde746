"""The model's tokenizer."""

from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError


def load_tokenizer(model_path: Path) -> Any:
    """Reads it from a Hugging Face folder; nothing is fetched, and no code of the folder is run.

    Raises:
        UserError: the folder is not there, or holds no tokenizer.
    """
    if not (model_path / "config.json").exists():
        raise UserError(f"{model_path} is not a Hugging Face folder: it has no config.json; set model.path to one")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model_path), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{model_path} has no tokenizer that can be read ({reason}): copy tokenizer.json there"
        ) from error
