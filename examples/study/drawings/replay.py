"""Question f: final on the mixture of experts, with routing replay, and on a dense model."""

from pathlib import Path

from examples.study.data import STALE_UPDATES, Study, finals
from examples.study.drawings import common
from examples.study.questions import mixture as question


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    cells = question.variants(study).values()
    found = any(study.runs(label, cell) for label in question.OBJECTIVES for cell in cells)
    return "" if found else "routing replay and the dense model"


def draw(study: Study, path: Path) -> None:
    """Draws a panel for each objective, with a group of points for each model."""
    figure = common.new_figure(13, 4.8)
    axes = figure.subplots(1, len(question.OBJECTIVES), sharey=True)
    cells = {"mixture": study.cell(STALE_UPDATES), **question.variants(study)}
    for axis, label in zip(axes, question.OBJECTIVES, strict=True):
        name, colour = common.METHODS[label]
        common.style(axis, name, y="pass@1 after the last update" if axis is axes[0] else "")
        for place, cell in enumerate(cells.values()):
            common.draw_points(axis, place, common.values(study, label, cell, finals), colour)
        axis.set_xticks(range(len(cells)), list(cells), rotation=20, ha="right")
        axis.set_ylim(-0.03, 1.03)
    common.finish(
        figure,
        path,
        title="Mixture of experts against a dense model and routing replay, "
        f"with {STALE_UPDATES} updates per batch of rollouts at the model's lr*",
        footnote=f"{common.SEEDS} {common.seeds(study, question.OBJECTIVES, list(cells.values())).capitalize()}.",
    )
