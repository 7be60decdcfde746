"""Calls sspo_lab, the library of sweeps and of the live page of runs. Only their commands import it."""

import importlib
from typing import Any

from megatron_sspo.errors import UserError


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Calls the function `sspo_lab.<name>`, and returns what it returns.

    Raises:
        UserError: the function refuses an argument, or cannot read or write a file.
    """
    module, _, function = f"sspo_lab.{name}".rpartition(".")
    found = getattr(importlib.import_module(module), function)
    try:
        return found(*arguments, **options)
    except importlib.import_module("sspo_lab.trainer").LabError as error:
        raise UserError(str(error)) from error
