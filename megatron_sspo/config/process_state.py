"""Checks that the user's code leaves what it shares with the trainer as it was, where it is loaded."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatron_sspo.errors import UserError


@contextmanager
def process_state_kept(what: str) -> Iterator[None]:
    """A context manager for the import, or the first call, of code that may be the user's.

    Raises UserError if the working folder, which is changed back, or torch's default dtype, default device or gradient
    mode, is not as before.
    """
    folder, before = os.getcwd(), _state()
    yield
    for name, value in _state().items():
        if value != before.get(name, value):
            os.chdir(folder)
            raise UserError(f"{what} has changed {name} to {value}, for the trainer too: let it restore {name}")


def _state() -> dict[str, str]:
    state = {"the working folder": os.getcwd()}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        state["torch's default dtype"] = str(torch.get_default_dtype())
        state["torch's default device"] = str(torch.get_default_device())
        state["torch's gradient mode"] = str(torch.is_grad_enabled())
    return state
