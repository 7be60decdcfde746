"""Question j: final at 3 lr* with each rule and without, beside a rate that was chosen, and the rates of the rules."""

from pathlib import Path

from examples.study.data import STALE_UPDATES, VARIANTS, Study, finals
from examples.study.drawings import common
from examples.study.grid import RULED
from examples.study.questions import rate_rules as question

_CYCLES = 3  # the first ones, whose rates are drawn


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    cells = [study.cell(STALE_UPDATES, 3, variant=rule) for rule in question.RULES]
    found = any(study.runs(label, cell) for label in RULED for cell in cells)
    return "" if found else "the rules of the learning rate"


def draw(study: Study, path: Path) -> None:
    """Draws a column for each objective: a group of points for each cell above, and the learning rates below."""
    figure = common.new_figure(15, 7.2)
    rows = figure.subplots(2, len(RULED), sharey="row")
    cells = {
        "lr*/3": study.cell(STALE_UPDATES, 1 / 3),
        "lr*": study.cell(STALE_UPDATES),
        "3 lr*": study.cell(STALE_UPDATES, 3),
        **{VARIANTS[rule]: study.cell(STALE_UPDATES, 3, variant=rule) for rule in question.RULES},
    }
    for column, label in enumerate(RULED):
        above, below = rows[0][column], rows[1][column]
        is_first = column == 0
        common.style(above, label, y="pass@1 after the last update" if is_first else "")
        common.style(below, x="update", y="learning rate" if is_first else "")
        for place, (name, cell) in enumerate(cells.items()):
            colour = common.RULE_COLOURS[place]
            common.draw_points(above, place, common.values(study, label, cell, finals), colour)
            if cell.variant:
                curves = common.curves(study, label, cell, "learning_rate")
                common.draw_band(below, [curve[: _CYCLES * STALE_UPDATES] for curve in curves], colour, label=name)
        above.set_xticks(range(len(cells)), list(cells), rotation=30, ha="right")
        above.set_ylim(-0.03, 1.03)
        below.set_yscale("log")
    common.finish(
        figure,
        path,
        title=f"A learning rate that follows the staleness, with {STALE_UPDATES} updates per batch of rollouts",
        footnote=f"{common.SEEDS} Below: means over seeds at 3 lr*, in the first {_CYCLES} cycles. "
        f"{common.seeds(study, list(RULED), list(cells.values())).capitalize()}.",
    )
