"""Calls sspo_lab, the library of sweeps, of the curves of runs and of their live page, when one of these is needed."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatron_sspo.errors import UserError


@contextmanager
def errors_as_user_errors() -> Iterator[None]:
    """Turns a LabError raised inside into a UserError of the same text."""
    try:
        yield
    except importlib.import_module("sspo_lab.trainer").LabError as error:
        raise UserError(str(error)) from error


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Calls the function `sspo_lab.<name>`; raises UserError if it refuses an argument, or cannot use a file."""
    module, _, function = f"sspo_lab.{name}".rpartition(".")
    with errors_as_user_errors():
        return getattr(importlib.import_module(module), function)(*arguments, **options)
