"""Names and colours of runs in figures, and the legend, whose names may be long."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's

_MAX_COLUMNS = 4
_CHARACTER = 0.68  # mean width of a character of a name, in font sizes
_LINE = 8  # the line beside a name and the gap after it, in characters
_POINTS = 72  # in an inch


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


def draw_legend(figure: Any, handles: Sequence[Any], names: Sequence[str], *, size: float = 10.0) -> None:
    """Draws a legend above a figure, in as many columns as fit. A name wider than the figure loses its middle.

    Args:
        handles: the lines of the legend.
        names: their names, at least one.
        size: the font size in points.
    """
    room = int(figure.get_figwidth() * _POINTS / (_CHARACTER * size))
    names = [shorten(name, room - _LINE) for name in names]
    columns = max(1, min(_MAX_COLUMNS, len(names), room // (max(map(len, names)) + _LINE)))
    figure.legend(
        handles,
        list(map(plain_text, names)),
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        fontsize=size,
    )


def plain_text(name: str) -> str:
    """Returns a name as matplotlib shows it as it is.

    Matplotlib would show text between two dollar signs as a formula, and refuses the halves of surrogate pairs that
    stand for the bytes of a path that is not UTF-8.
    """
    return name.replace("$", r"\$").encode("utf-8", "replace").decode("utf-8")


def shorten(name: str, length: int) -> str:
    """Returns a name of at most `length` characters, without its middle: ends tell the runs of a sweep apart, too."""
    return name if len(name) <= length else f"{name[: length // 2]}…{name[-((length - 1) // 2) :]}"
