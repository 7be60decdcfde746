"""Question i on a GPU: held-out pass@1 of a pretrained model over the updates, by objective and learning rate."""

from pathlib import Path

from examples.study.data import STALE_UPDATES, Study
from examples.study.drawings import common
from examples.study.questions import pretrained_on_gpu as question


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    found = any(study.runs(label, cell) for label in question.OBJECTIVES for cell in question.stale_cells(study))
    return "" if found else "the pretrained model"


def draw(study: Study, path: Path) -> None:
    """Draws a panel for each learning rate, with the mean and the band of each objective's seeds."""
    figure = common.new_figure(11, 4.8)
    cells = question.stale_cells(study)
    axes = figure.subplots(1, len(cells), sharey=True)
    for axis, cell in zip(axes, cells, strict=True):
        common.style(axis, str(cell), x="update", y="held-out pass@1" if axis is axes[0] else "")
        drawn = [
            common.draw_band(axis, common.curves(study, label, cell), common.METHODS[label][1])
            for label in question.OBJECTIVES
        ]
        if not any(drawn):
            common.say_not_run(axis)
        axis.set_ylim(-0.03, 1.03)
    common.legend(figure, dict(common.METHODS[label] for label in question.OBJECTIVES))
    common.finish(
        figure,
        path,
        title=f"SmolLM2-135M on sums, with {STALE_UPDATES} updates per batch of rollouts",
        footnote=f"{common.BANDS} {common.seeds(study, question.OBJECTIVES, cells).capitalize()}.",
    )
