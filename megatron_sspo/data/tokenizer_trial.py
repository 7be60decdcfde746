"""A trial of a model's tokenizer and chat template, which are programs that may not end."""

import contextlib
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.processes.forks import exceeded_limit
from megatron_sspo.weights.transformers_config import read_tokenizer

_MESSAGES = [{"role": "user", "content": "What is 1 + 1?"}]


def try_tokenizer(model_path: Path) -> None:
    """Loads the tokenizer in a fork, and writes a message with it: see `exceeded_limit`.

    Raises:
        UserError: a limit was exceeded.
    """
    if how := exceeded_limit(lambda: _write_message(model_path), "tokenizer"):
        raise UserError(
            f"the tokenizer of {model_path} has not loaded and written one short message within {how}: replace its "
            "tokenizer files and chat template by those of the published model"
        )


def _write_message(model_path: Path) -> None:
    tokenizer = read_tokenizer(model_path)
    text = _MESSAGES[0]["content"]
    with contextlib.suppress(ValueError):  # raised if there is no chat template
        text = str(tokenizer.apply_chat_template(_MESSAGES, tokenize=False, add_generation_prompt=True))
    tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
