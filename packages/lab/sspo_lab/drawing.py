"""Parts of figures: colours, axes, names of runs, the legend, whose names may be long, and the picture's file."""

import logging
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sspo_lab.trainer import LabError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's
INK = "#333333"
_FORMATS = (".png", ".svg", ".pdf")
_MAX_COLUMNS = 4
_CHARACTER = 0.68  # mean width of a character of a name, in font sizes
_LINE = 8  # the line beside a name and the gap after it, in characters
_POINTS = 72  # in an inch


def check_output(path: Path) -> None:
    """Raises LabError, before a picture is drawn, if its suffix is no format or its folder does not exist."""
    if path.suffix not in _FORMATS or not path.parent.is_dir():
        raise LabError(f"{path} is not a picture in a folder: choose a suffix of {', '.join(_FORMATS)} with --output")


def import_matplotlib() -> Any:
    """Imports matplotlib with a backend that needs no display, and returns the module."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no warning about a temporary cache folder
    import matplotlib

    matplotlib.use("Agg")
    return matplotlib


def write_picture(figure: Any, path: Path, *, dpi: int) -> None:
    """Writes a temporary file beside `path`, in the format of its suffix, and renames it, or raises LabError."""
    partial = path.with_name(f".{path.stem[:40]}.{os.getpid()}.partial")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)  # the font lacks a letter of a name
        try:
            figure.savefig(partial, dpi=dpi, format=path.suffix.removeprefix("."))
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise LabError(f"cannot write {path}: {error.strerror}; choose another place with --output") from error


def draw_frame(axis: Any) -> None:
    """Draws the left and bottom edges of an axis, its ticks and its grid, in the colours of all figures of runs."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.tick_params(colors=INK, labelsize=9, length=3)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)


def draw_legend(figure: Any, handles: Sequence[Any], names: Sequence[str], *, size: float = 10.0) -> None:
    """Draws a legend above a figure, in as many columns as fit. A name wider than the figure loses its middle.

    Args:
        names: the names of the handles, at least one.
        size: the font size in points.
    """
    room = int(figure.get_figwidth() * _POINTS / (_CHARACTER * size))
    names = [shorten(name, room - _LINE) for name in names]
    columns = max(1, min(_MAX_COLUMNS, len(names), room // (max(map(len, names)) + _LINE)))
    labels = [plain_text(name) for name in names]
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=size)


def plain_text(name: str) -> str:
    """Returns a name that matplotlib shows as it is: no formula, and no halves of surrogate pairs, which it refuses."""
    return name.replace("$", r"\$").encode("utf-8", "replace").decode("utf-8")


def shorten(name: str, length: int) -> str:
    """Returns a name of at most `length` characters, without its middle: ends tell the runs of a sweep apart, too."""
    return name if len(name) <= length else f"{name[: length // 2]}…{name[-((length - 1) // 2) :]}"


def smoothed(values: Sequence[float], share: float) -> list[float]:
    """Returns the mean over a window around each value, of this share of all; unlike a mean over past values, no lag.

    A value that is not finite stays NaN, and the windows of the others leave it out.
    """
    if not values:
        return []
    found = np.asarray(values, dtype=np.float64)
    known = np.isfinite(found)
    half = math.ceil(len(found) * share / 2)
    # each window is added up by itself: a difference of running sums would lose the small values after a large one
    padded, counted = (np.pad(one, half) for one in (np.where(known, found, 0.0), known.astype(float)))
    sums, counts = (np.convolve(one, np.ones(2 * half + 1), "valid") for one in (padded, counted))
    return np.where(known, sums / np.maximum(counts, 1), np.nan).tolist()
