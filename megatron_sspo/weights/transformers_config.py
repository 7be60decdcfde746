"""Reads a model's config.json and tokenizer by Transformers, and names the file in the errors of config.json."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron_sspo.config.naming import one_line
from megatron_sspo.errors import UserError

_PROBES = ("12+345", "1 2", "a b", "Hello  World, it's", "\n\n  \tf(x_1) = {'a': 12 + 345}\n")


def read_config(model_path: Path) -> Any:
    """Returns `config.json` as Transformers reads it; no code of the folder is run.

    Raises UserError if Transformers refuses the file.
    """
    from transformers import AutoConfig  # the weight table does without this package

    with transformers_errors_as_user_errors(model_path / "config.json"):
        return AutoConfig.from_pretrained(model_path, local_files_only=True, trust_remote_code=False)


def read_tokenizer(model_path: Path) -> Any:
    """Returns the tokenizer of a folder, which splits texts as tokenizer.json says; no code of the folder is run.

    For some models Transformers 5 takes of that file the vocabulary alone, and the rules of a class: all of `qwen2` are
    a Qwen2Tokenizer, which drops what Qwen's rules make of a text and the vocabulary does not have, such as spaces.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    found: Any = AutoTokenizer.from_pretrained(str(model_path), **options)
    file = model_path / "tokenizer.json"
    if not file.exists():
        return found
    stored = Tokenizer.from_file(str(file))
    for text in _PROBES:
        try:
            expected = stored.encode(text, add_special_tokens=False).ids
        except Exception:  # of no narrower type: a vocabulary need not have every character
            continue
        if found(text, add_special_tokens=False)["input_ids"] != expected:
            return PreTrainedTokenizerFast.from_pretrained(str(model_path), **options)
    return found


@contextmanager
def transformers_errors_as_user_errors(file: Path) -> Iterator[None]:
    """Turns any error that Transformers raises inside into a UserError that names the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = one_line(str(error)) or type(error).__name__
        raise UserError(f"Transformers cannot use {file} ({reason}); correct the file") from error
