"""Names and colours of runs in figures and on the live page."""

import os
from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's


def run_label(folder: Path, folders: Sequence[Path]) -> str:
    """Returns the folder's name, or its path if two folders share a name, and the run's gate."""
    name = _name(folder)
    if list(map(_name, folders)).count(name) > 1:
        name = str(folder)
    gate = _gate(folder / "config.json")
    return f"{name} ({gate})" if gate else name


def _name(folder: Path) -> str:
    return os.path.basename(os.path.realpath(folder))  # unlike Path.resolve, it accepts a circle of links


def _gate(config: Path) -> str:
    """Returns the class of the run's token gate, or of its sequence gate if that is the only one; "" if unknown."""
    try:
        objective = read_json(config)["objective"]
        gates = [str(objective[gate]["class"]) for gate in ("token_gate", "sequence_gate")]
    except (UserError, KeyError, TypeError):
        return ""
    return next((gate for gate in gates if gate != "Identity"), "")
