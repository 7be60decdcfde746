"""Parts that the figures of the study share: colours, axes, bands over seeds, points of seeds, title and footnote."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.study.comparisons import NOT_RUN
from examples.study.data import Cell, Curve, Result, Study
from examples.study.statistics import mean, mean_curve
from sspo_lab.drawing import COLOURS, INK, check_output, draw_frame, import_matplotlib, write_picture

TWO_SIDED, ONE_SIDED = COLOURS[1], COLOURS[0]
METHODS = {  # label of the grid -> (name in the figures, colour)
    "GRPO": ("GRPO", COLOURS[6]),
    "GSPO": ("GSPO", COLOURS[2]),
    "GMPO": ("GMPO", COLOURS[4]),
    "SAPO": ("SAPO", COLOURS[3]),
    "AtanLog": ("SSPO", COLOURS[1]),
    "AtanLog one-sided": ("SSPO, one-sided", COLOURS[0]),
}
RULE_COLOURS = (COLOURS[6], COLOURS[2], COLOURS[1], COLOURS[3], COLOURS[0])  # lr*/3, lr*, 3 lr*, and the two rules
SEEDS = "Points: seeds. Bars: mean over seeds, with its 95 % bootstrap interval."
BANDS = "Lines: mean over seeds. Bands: 95 % bootstrap interval over seeds."
_GREY = "#777777"
_SPREAD = 0.18  # of the points of a group, to both sides


def new_figure(width: float, height: float) -> Any:
    """Returns the body of an empty figure that needs no display; the title is outside, where no legend covers it."""
    import_matplotlib()
    from matplotlib.figure import Figure

    whole = Figure(figsize=(width, height), layout="constrained")
    layout: Any = whole.get_layout_engine()
    layout.set(w_pad=0.08, h_pad=0.08)
    return whole.subfigures(1, 1)


def finish(figure: Any, path: Path, *, title: str, footnote: str) -> None:
    """Adds the title and the footnote, and writes the picture.

    Raises:
        LabError: the picture cannot be written.
    """
    check_output(path)
    whole = figure.get_figure(root=True)
    whole.suptitle(title, fontsize=13, color=INK)
    whole.supxlabel(footnote, fontsize=9, color=_GREY)
    write_picture(whole, path, dpi=120)


def style(axis: Any, title: str = "", *, x: str = "", y: str = "") -> None:
    """Styles an axis and names it."""
    axis.set_title(title, fontsize=10.5, loc="left", color=INK)
    axis.set_xlabel(x, fontsize=9.5, color=INK)
    axis.set_ylabel(y, fontsize=9.5, color=INK)
    draw_frame(axis)


def say_not_run(axis: Any) -> None:
    """Writes into an empty panel that its cell was not run."""
    axis.text(0.5, 0.5, NOT_RUN, transform=axis.transAxes, ha="center", va="center", color=_GREY, fontsize=10)


def draw_band(axis: Any, curves: Sequence[Curve], colour: str, *, thin: bool = False, **line: Any) -> bool:
    """Draws the mean of the seeds' curves with its band over the updates that all have; returns whether there are any.

    Args:
        axis: of the panel.
        curves: one for each seed.
        colour: of the line and the band.
        thin: draws the seeds' curves, too.
        **line: of matplotlib's `plot` for the mean.
    """
    runs = [dict(curve) for curve in curves if curve]
    updates = [update for update in (runs[0] if runs else ()) if all(update in run for run in runs)]
    if not updates:
        return False
    values = [[run[update] for update in updates] for run in runs]
    middle, low, high = mean_curve(values)
    if thin:
        for one in values:
            axis.plot(updates, one, color=colour, linewidth=0.5, alpha=0.35)
    if len(runs) > 1:
        axis.fill_between(updates, low, high, color=colour, alpha=0.18, linewidth=0)
    axis.plot(updates, middle, color=colour, **{"linewidth": 1.8, **line})
    return True


def draw_points(axis: Any, place: float, values: Sequence[float], colour: str) -> None:
    """Draws a group of seeds at one place of the x axis: points beside each other, and the mean with its interval."""
    if not values:
        options = {"rotation": 90, "ha": "center", "va": "bottom", "color": _GREY, "fontsize": 7.5}
        axis.text(place, 0.02, NOT_RUN, transform=axis.get_xaxis_transform(), **options)
        return
    offsets = np.linspace(-_SPREAD, _SPREAD, len(values)) if len(values) > 1 else [0.0]
    axis.scatter([place + offset for offset in offsets], values, s=12, color=colour, alpha=0.55, linewidth=0, zorder=3)
    found = mean(values)
    axis.plot([place - 0.25, place + 0.25], [found.mean] * 2, color=colour, linewidth=2.2, zorder=4)
    if found.low is not None:
        axis.plot([place] * 2, [found.low, found.high], color=colour, linewidth=1.4, zorder=4)


def draw_methods(axis: Any, values: Mapping[str, Sequence[float]]) -> None:
    """Draws a group of points for each of the methods, and names them below."""
    for place, (label, (_, colour)) in enumerate(METHODS.items()):
        draw_points(axis, place, values.get(label, ()), colour)
    axis.set_xticks(range(len(METHODS)), [name for name, _ in METHODS.values()], rotation=30, ha="right")


def legend(figure: Any, names: Mapping[str, str], **options: Any) -> None:
    """Draws the legend of names and colours between the title and the panels."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, linewidth=2.5) for colour in names.values()]
    options = {"loc": "outside upper center", "ncols": len(names), "frameon": False, "fontsize": 10, **options}
    figure.legend(lines, list(names), **options)


def curves(study: Study, label: str, cell: Cell, metric: str = "") -> list[Curve]:
    """Returns the curve of each seed of a cell."""
    return [study.curve(run, metric) for run in study.runs(label, cell).values()]


def values(
    study: Study, label: str, cell: Cell, of: Callable[[Mapping[int, Result]], Mapping[int, float]]
) -> list[float]:
    """Returns a measure of each seed of a cell."""
    return list(of(study.runs(label, cell)).values())


def seeds(study: Study, labels: Sequence[str], cells: Sequence[Cell]) -> str:
    """Returns the number of seeds in words, such as "8 seeds" or "2 to 8 seeds", of the cells that have runs."""
    counts = {len(study.runs(label, cell)) for label in labels for cell in cells} - {0}
    if not counts:
        return "no seeds"
    few, many = min(counts), max(counts)
    return f"{many} seed{'s' if many > 1 else ''}" if few == many else f"{few} to {many} seeds"
