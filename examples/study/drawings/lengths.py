"""Question e: final by objective on short and on long responses."""

from pathlib import Path

from examples.study.data import LONG_SUMS, STALE_UPDATES, Study, finals
from examples.study.drawings import common
from examples.study.questions import lengths as question


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    cell = study.cell(STALE_UPDATES, recipe=LONG_SUMS)
    return "" if any(study.runs(label, cell) for label in common.METHODS) else "longer sums"


def draw(study: Study, path: Path) -> None:
    """Draws a panel for each task."""
    figure = common.new_figure(11, 5)
    axes = figure.subplots(1, len(question.TASKS), sharey=True)
    cells = [study.cell(STALE_UPDATES, recipe=recipe) for recipe in question.TASKS]
    for axis, cell, task in zip(axes, cells, question.TASKS.values(), strict=True):
        common.style(axis, f"{task}: {cell}", y="pass@1 after the last update" if axis is axes[0] else "")
        common.draw_methods(axis, {one: common.values(study, one, cell, finals) for one in common.METHODS})
        axis.set_ylim(-0.03, 1.03)
    common.finish(
        figure,
        path,
        title="Token weights (GRPO, SAPO) against sequence weights (the others) on short and on long responses",
        footnote=f"{common.SEEDS} {common.seeds(study, list(common.METHODS), cells).capitalize()}.",
    )
