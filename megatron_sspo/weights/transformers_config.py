"""Reads a model's config.json as Transformers does, and names the file in its errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron_sspo.config.naming import one_line
from megatron_sspo.errors import UserError


def read_config(model_path: Path) -> Any:
    """Returns `config.json` as Transformers reads it; no code of the folder is run.

    Raises:
        UserError: Transformers refuses the file.
    """
    from transformers import AutoConfig  # the weight table does without this package

    with transformers_errors_as_user_errors(model_path / "config.json"):
        return AutoConfig.from_pretrained(model_path, local_files_only=True, trust_remote_code=False)


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
