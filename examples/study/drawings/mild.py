"""Question d: final, area, and entropy at equal skill in the mild cells."""

from pathlib import Path

from examples.study.data import Study, areas, finals
from examples.study.drawings import common
from examples.study.questions import mild as question


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    cells = list(map(study.cell, question.UPDATES_PER_SYNC))
    return "" if any(study.runs(label, cell) for label in common.METHODS for cell in cells) else "mild cells"


def draw(study: Study, path: Path) -> None:
    """Draws a row of three panels for each μ."""
    figure = common.new_figure(13, 7)
    axes = figure.subplots(len(question.UPDATES_PER_SYNC), 3, sharex=True)
    cells = list(map(study.cell, question.UPDATES_PER_SYNC))
    for row, cell in zip(axes, cells, strict=True):
        skilled = {label: question.entropy_at_skill(study, label, cell) for label in common.METHODS}
        panels = (
            ("final", "pass@1 after the last update", {one: finals(study.runs(one, cell)) for one in common.METHODS}),
            ("area", "mean pass@1 over the updates", {one: areas(study.runs(one, cell)) for one in common.METHODS}),
            ("entropy at equal skill", f"nats per token, at first pass@1 ≥ {question.SKILL}", skilled),
        )
        for axis, (title, unit, found) in zip(row, panels, strict=True):
            common.style(axis, f"{title}: {cell}", y=unit)
            common.draw_methods(axis, {label: list(by_seed.values()) for label, by_seed in found.items()})
    counts = common.seeds(study, list(common.METHODS), cells)
    common.finish(
        figure,
        path,
        title="The mild regime: final, area, and entropy at the update where a run first reaches "
        f"pass@1 {question.SKILL}, by objective",
        footnote=f"{common.SEEDS} {counts.capitalize()}; in the right column, those that reach {question.SKILL}.",
    )
