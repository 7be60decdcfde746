"""Draws a sweep: for each setting, the curves of the compared values with bands over seeds."""

import math
import os
import warnings
from pathlib import Path
from typing import Any

from sspo_lab.results import Results, read_results
from sspo_lab.statistics import interquartile_mean
from sspo_lab.trainer import LabError

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's
_INK = "#333333"
_COLUMNS = 3
_SAMPLES = 2_000  # of the bootstrap at each update
_LONGEST_LABEL = 28  # characters


def plot_sweep(folder: Path, path: Path, *, measure: str = "", compare: str = "") -> None:
    """Draws a sweep's finished runs; the arguments are those of `read_results`.

    Raises:
        LabError: `read_results` fails, or the picture cannot be written.
    """
    results = read_results(folder, measure=measure, compare=compare)
    from matplotlib.figure import Figure

    columns = min(len(results.settings), _COLUMNS)
    rows = math.ceil(len(results.settings) / columns)
    figure = Figure(figsize=(max(9.0, 4.6 * columns), 1 + 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(results.settings) :]:
        axis.set_axis_off()
    for axis, setting in zip(axes.flat, results.settings, strict=False):
        _draw_curves(axis, results, setting)
    if results.field:
        columns = min(4, len(results.values))
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=columns, frameon=False)
    counts = sorted({len(curves) for curves in results.curves.values()})
    left_out = f"   Not finished, and left out: {len(results.unfinished)} runs." if results.unfinished else ""
    seeds = f"{' to '.join(map(str, {counts[0]: 0, counts[-1]: 0}))} seed{'s' if counts[-1] > 1 else ''}"
    footnote = f"Interquartile means over {seeds}; 95 % intervals by bootstrap.{left_out}"
    figure.supxlabel(footnote, fontsize=8.5, color="#777777")
    _write(figure, path)


def _draw_curves(axis: Any, results: Results, setting: str) -> None:
    """Draws the interquartile mean over seeds and its interval at each update that all runs of a value have."""
    from matplotlib.ticker import MaxNLocator

    for place, value in enumerate(results.values):
        runs = [dict(curve) for curve in results.curves.get((value, setting), ())]
        updates = [update for update in (runs[0] if runs else ()) if all(update in run for run in runs)]
        found = [interquartile_mean([[run[update] for run in runs]], samples=_SAMPLES) for update in updates]
        low = [math.nan if one.low is None else one.low for one in found]
        high = [math.nan if one.high is None else one.high for one in found]
        colour = _COLOURS[place % len(_COLOURS)]
        marker = {"marker": "o", "markersize": 4} if len(updates) <= 20 else {}
        label = _plain_text(value if len(value) <= _LONGEST_LABEL else f"{value[: _LONGEST_LABEL - 9]}…{value[-8:]}")
        axis.fill_between(updates, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(updates, [one.estimate for one in found], color=colour, linewidth=1.8, label=label, **marker)
    axis.set_title(_plain_text(setting) or _plain_text(results.measure), fontsize=11, loc="left", color=_INK)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_xlabel("update", color=_INK)
    axis.set_ylabel(_plain_text(results.measure), color=_INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)


def _plain_text(name: str) -> str:
    """Returns a name that matplotlib shows as it is: no formula, and no halves of surrogate pairs, which it refuses."""
    return name.replace("$", r"\$").encode("utf-8", "replace").decode("utf-8")


def _write(figure: Any, path: Path) -> None:
    """Writes a temporary file beside `path`, in the format of its suffix, and renames it.

    Raises:
        LabError: the suffix is none of a picture, or the file cannot be written.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise LabError(f"{path} is not a picture: choose a suffix of .png, .svg, .pdf with --output")
    partial = path.with_name(f".{os.getpid()}.partial{path.suffix}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)  # the font lacks a letter of a name
        try:
            figure.savefig(partial, dpi=120)
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise LabError(f"cannot write {path}: {error.strerror}; choose another with --output") from error
