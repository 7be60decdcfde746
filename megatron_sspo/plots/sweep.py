"""Draws a sweep: a panel of curves for each setting, interquartile means, and probabilities of improvement."""

import math
from pathlib import Path
from typing import Any

from megatron_sspo.plots.curves import INK, draw_frame
from megatron_sspo.plots.labels import COLOURS
from megatron_sspo.plots.legend import draw_legend, plain_text, shorten
from megatron_sspo.plots.picture import check_output, import_matplotlib, write_picture
from megatron_sspo.processes.console import pluralize
from megatron_sspo.sweep.results import Results, read_results
from megatron_sspo.sweep.statistics import interquartile_mean
from megatron_sspo.sweep.table import ALL, common_settings, compare_values, measures, summarize

_COLUMNS = 3
_BAND_SAMPLES = 2_000  # bootstrap samples at each update
_LONGEST_LABEL = 28  # characters


def plot_sweep(folder: Path, path: Path, *, measure: str = "", compare: str = "") -> None:
    """Draws a sweep's finished runs; the arguments are those of `read_results`.

    Raises:
        UserError: `read_results` fails, or `path` cannot be written.
    """
    check_output(path)
    results = read_results(folder, measure=measure, compare=compare)
    import_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = len(results.settings)
    columns = 2 if panels in (1, 2, 4) else _COLUMNS
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * (rows + 1)), layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns)
    first = None
    for place, setting in enumerate(results.settings):
        where = grid[place // columns, place % columns] if panels > 1 else grid[0, :]
        first = axis = figure.add_subplot(where, sharey=first, sharex=first)
        _draw_curves(axis, results, setting)
    title, scores = next(iter(measures(results).items()))
    setting = ALL if panels > 1 else results.settings[0]
    # with three columns, the matrix takes two of them
    _draw_means(figure.add_subplot(grid[rows, 0]), results, scores, setting, title)
    _draw_matrix(figure.add_subplot(grid[rows, 1:]), results, scores, setting)
    handles = [Line2D([], [], color=_colour(place), linewidth=2.5) for place in range(len(results.values))]
    if results.field:
        draw_legend(figure, handles, results.values)
    figure.supxlabel(_footnote(results, scores, setting), fontsize=8.5, color="#777777")
    write_picture(figure, path, dpi=120)


def _draw_curves(axis: Any, results: Results, setting: str) -> None:
    """Draws the interquartile mean over seeds and its interval at each update that all runs of a value have."""
    from matplotlib.ticker import MaxNLocator

    for place, value in enumerate(results.values):
        runs = [dict(curve) for curve in results.curves.get((value, setting), ())]
        updates = [update for update in (runs[0] if runs else ()) if all(update in run for run in runs)]
        found = [interquartile_mean([[run[update] for run in runs]], samples=_BAND_SAMPLES) for update in updates]
        low = [math.nan if one.low is None else one.low for one in found]
        high = [math.nan if one.high is None else one.high for one in found]
        axis.fill_between(updates, low, high, color=_colour(place), alpha=0.2, linewidth=0)
        marker = {"marker": "o", "markersize": 4} if len(updates) <= 20 else {}
        axis.plot(updates, [one.estimate for one in found], color=_colour(place), linewidth=1.8, **marker)
    axis.set_title(plain_text(setting) or plain_text(results.measure), fontsize=11, loc="left", color=INK)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_xlabel("update", color=INK)
    axis.set_ylabel(plain_text(results.measure), color=INK)
    draw_frame(axis)


def _draw_means(axis: Any, results: Results, scores: Any, setting: str, title: str) -> None:
    for place, value in enumerate(results.values):
        found = summarize(results, scores, value, setting)
        if found is None:
            continue
        interval = found[0]
        if interval.low is not None and interval.high is not None:
            axis.plot([interval.low, interval.high], [place, place], color=_colour(place), linewidth=6, alpha=0.35)
        axis.plot([interval.estimate], [place], color=_colour(place), marker="|", markersize=16, markeredgewidth=3)
    axis.set_yticks(range(len(results.values)), [_shorten(value) for value in results.values])
    axis.set_ylim(len(results.values) - 0.5, -0.5)
    axis.set_title(
        f"{plain_text(title)}{f', {plain_text(setting)}' if setting else ''}",
        fontsize=10,
        loc="left",
        color=INK,
    )
    draw_frame(axis)


def _draw_matrix(axis: Any, results: Results, scores: Any, setting: str) -> None:
    if len(results.values) < 2:
        axis.set_axis_off()
        return
    pairs = [[(first, second) for second in results.values] for first in results.values]
    found = [
        [compare_values(results, scores, *pair, setting) if pair[0] != pair[1] else None for pair in row]
        for row in pairs
    ]
    shares = [[one.estimate if one else math.nan for one in row] for row in found]
    axis.imshow(shares, cmap="PuOr_r", vmin=0, vmax=1, aspect="auto")
    for row, of_row in enumerate(found):
        for column, one in enumerate(of_row):
            if one is not None:
                interval = f"\n({one.low:.2f}–{one.high:.2f})" if one.low is not None else ""
                dark = abs(one.estimate - 0.5) > 0.35
                text = f"{one.estimate:.2f}{interval}"
                axis.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else INK)
    labels = [_shorten(value) for value in results.values]
    axis.set_xticks(range(len(labels)), labels, rotation=20, ha="right", fontsize=8)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_title("P(row > column) at the end", fontsize=10, loc="left", color=INK)
    axis.tick_params(length=0, colors=INK)
    axis.spines[:].set_visible(False)


def _footnote(results: Results, scores: Any, setting: str) -> str:
    settings = common_settings(results, scores, setting)
    counts = {len(scores[value].get(one, ())) for value in results.values for one in settings} or {0}
    seeds = f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else pluralize(max(counts), "seed")
    left_out = (
        f"   Not finished, and left out: {pluralize(len(results.unfinished), 'run')}." if results.unfinished else ""
    )
    return f"Interquartile means over {seeds}; 95 % intervals by stratified bootstrap.{left_out}"


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _shorten(label: str) -> str:
    return plain_text(shorten(label, _LONGEST_LABEL))
