"""The main figure: pass@1 under staleness, two-sided against one-sided, for the core gates."""

from pathlib import Path

from examples.study.data import STALE_UPDATES, Study
from examples.study.drawings import common
from examples.study.forms import CORE_GATES

_FACTORS = (1, 3)


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    cells = [study.cell(STALE_UPDATES, factor) for factor in _FACTORS]
    labels = [label for gate in CORE_GATES for label in (gate.two_sided, gate.one_sided)]
    found = any(any(common.curves(study, label, cell)) for label in labels for cell in cells)
    return "" if found else "staleness cells"


def draw(study: Study, path: Path) -> None:
    """Draws a row of panels for each learning rate, and a column for each gate."""
    figure = common.new_figure(15, 6.4)
    axes = figure.subplots(len(_FACTORS), len(CORE_GATES), sharex=True, sharey=True)
    for row, factor in zip(axes, _FACTORS, strict=True):
        cell = study.cell(STALE_UPDATES, factor)
        for axis, gate in zip(row, CORE_GATES, strict=True):
            first = axis is row[0]
            common.style(axis, f"{gate.name}, {cell.rate_name} = {cell.lr:.3g}", y="held-out pass@1" if first else "")
            drawn = [
                common.draw_band(axis, common.curves(study, label, cell), colour, thin=True, marker="o", markersize=3)
                for label, colour in ((gate.two_sided, common.TWO_SIDED), (gate.one_sided, common.ONE_SIDED))
            ]
            if not any(drawn):
                common.say_not_run(axis)
            axis.set_ylim(-0.03, 1.03)
    for axis in axes[-1]:
        axis.set_xlabel("update", fontsize=9.5)
    common.legend(figure, {"two-sided gate": common.TWO_SIDED, "one-sided gate": common.ONE_SIDED})
    labels = [label for gate in CORE_GATES for label in (gate.two_sided, gate.one_sided)]
    counts = common.seeds(study, labels, [study.cell(STALE_UPDATES, factor) for factor in _FACTORS])
    common.finish(
        figure,
        path,
        title=f"The same gates acting on both sides or on one side, with {STALE_UPDATES} updates per batch of rollouts",
        footnote=f"{common.BANDS} Thin: seeds. {counts.capitalize()}. Greedy pass@1 on 256 sums that are never trained "
        "on.",
    )
