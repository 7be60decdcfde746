"""Draws a sweep: for each setting, the curves of the compared values with bands over seeds."""

import math
from pathlib import Path
from typing import Any

from sspo_lab.drawing import COLOURS, INK, check_output, draw_frame, plain_text, shorten, write_picture
from sspo_lab.results import Results, read_results
from sspo_lab.statistics import interquartile_mean

_COLUMNS = 3
_SAMPLES = 2_000  # of the bootstrap at each update
_LONGEST_LABEL = 28  # characters


def plot_sweep(folder: Path, path: Path, *, measure: str = "", compare: str = "") -> None:
    """Draws a sweep's finished runs; the arguments are those of `read_results`, and so are the errors."""
    results = read_results(folder, measure=measure, compare=compare)
    check_output(path)
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
    write_picture(figure, path, dpi=120)


def _draw_curves(axis: Any, results: Results, setting: str) -> None:
    """Draws the interquartile mean over seeds and its interval at each update that all runs of a value have."""
    from matplotlib.ticker import MaxNLocator

    for place, value in enumerate(results.values):
        runs = [dict(curve) for curve in results.curves.get((value, setting), ())]
        updates = [update for update in (runs[0] if runs else ()) if all(update in run for run in runs)]
        found = [interquartile_mean([[run[update] for run in runs]], samples=_SAMPLES) for update in updates]
        low = [math.nan if one.low is None else one.low for one in found]
        high = [math.nan if one.high is None else one.high for one in found]
        colour = COLOURS[place % len(COLOURS)]
        marker = {"marker": "o", "markersize": 4} if len(updates) <= 20 else {}
        label = plain_text(shorten(value, _LONGEST_LABEL))
        axis.fill_between(updates, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(updates, [one.estimate for one in found], color=colour, linewidth=1.8, label=label, **marker)
    axis.set_title(plain_text(setting) or plain_text(results.measure), fontsize=11, loc="left", color=INK)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_xlabel("update", color=INK)
    axis.set_ylabel(plain_text(results.measure), color=INK)
    draw_frame(axis)
