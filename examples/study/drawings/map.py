"""Question g: final and class of every objective over μ and the learning rate."""

from pathlib import Path
from typing import Any

import numpy as np

from examples.study.data import COLLAPSES, LEARNS, MAP, STALLS, Study
from examples.study.drawings import common
from examples.study.questions import map as question

_MARKS = {LEARNS: "o", STALLS: "_", COLLAPSES: "x"}
_COLUMNS = 4
_LIGHT = 0.55  # finals above it have a light colour


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    # the cells that it shares with other questions are no map by themselves
    known = study.cell(1).lr is not None and any(one.sweep.startswith(MAP) for one in study.results)
    return "" if known else "map"


def draw(study: Study, path: Path) -> None:
    """Draws a panel for each objective: colour for final, and a mark for each run."""
    from matplotlib.lines import Line2D

    rows = -(-len(question.OBJECTIVES) // _COLUMNS)
    figure = common.new_figure(14, 2.5 * rows + 1.6)
    axes = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    image = None
    for place, objective in enumerate(question.OBJECTIVES):
        axis = axes.flat[place]
        common.style(
            axis, objective, x="μ, updates per batch of rollouts" if place >= len(axes.flat) - _COLUMNS else ""
        )
        image = _draw_objective(axis, study, objective)
    figure.colorbar(image, ax=axes, label="pass@1 after the last update, mean of the runs", shrink=0.7, aspect=35)
    handles = [
        Line2D([], [], color="black", marker=mark, linestyle="", markersize=6, label=kind)
        for kind, mark in _MARKS.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=10)
    common.finish(
        figure,
        path,
        title="Where each objective learns, stalls and collapses: updates per batch × learning rate, "
        f"lr* = {study.cell(1).lr:.3g}",
        footnote="A mark for each run, seeds 0 and 1; no interval. Grey: not run. "
        f"At μ = 1 the runs of {question.ON_POLICY} stand for all objectives, which have one gradient there.",
    )


def _draw_objective(axis: Any, study: Study, objective: str) -> Any:
    """Draws one panel, and returns the image for the bar of colours."""
    finals = np.full((len(question.FACTORS), len(question.UPDATES_PER_SYNC)), np.nan)
    for row, factor in enumerate(question.FACTORS):
        for column, mu in enumerate(question.UPDATES_PER_SYNC):
            runs = question.runs(study, objective, mu, factor)
            if not runs:
                continue
            finals[row, column] = np.mean([run.final for run in runs])
            colour = "black" if finals[row, column] > _LIGHT else "white"
            for side, run in enumerate(runs):
                at = column + (0.36 * side - 0.18) * (len(runs) > 1)
                axis.scatter([at], [row], marker=_MARKS[run.kind], s=26, color=colour, linewidth=1.3, zorder=3)
    image = axis.imshow(finals, cmap="viridis", vmin=0, vmax=1, aspect="auto", origin="lower")
    axis.set_facecolor("#dddddd")
    axis.set_xticks(range(len(question.UPDATES_PER_SYNC)), question.UPDATES_PER_SYNC)
    axis.set_yticks(range(len(question.FACTORS)), list(question.FACTORS.values()))
    axis.grid(visible=False)
    return image
