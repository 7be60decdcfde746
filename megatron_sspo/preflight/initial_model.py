"""Checks the model that a run with random weights wrote at its start."""

from pathlib import Path

from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.stopping import end_tokens
from megatron_sspo.weights.family import load_family, size
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.transformers_config import read_config


def check_initial_model(source: Path, initial: Path) -> None:
    """Checks the model that a run with random weights has written at its start, whose files its last model gets, too.

    If there is none, it will be written again.

    Raises:
        UserError: a file is missing or damaged.
    """
    if not initial.exists():
        return
    try:
        with open_folder(initial) as folder:
            folder.check(load_family(folder.config, initial).rows(folder.config, size(folder.config, "vocab_size")))
        tokenizer = load_tokenizer(initial)
        end_tokens(initial, read_config(initial), tokenizer)
        if not (initial / "generation_config.json").exists():
            raise UserError("generation_config.json is missing")
        if tokenizer.chat_template is None and load_tokenizer(source).chat_template is not None:
            raise UserError("its chat template is missing")
    except UserError as error:
        raise UserError(
            f"{initial}, which the run wrote at its start, is damaged ({error}): delete that folder, and it is written "
            "again from the seed"
        ) from error
