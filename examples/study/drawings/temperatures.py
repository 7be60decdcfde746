"""Question c: final over the size of the temperatures, both directions and both forms."""

import math
from pathlib import Path

from examples.study.data import STALE_UPDATES, Study, finals
from examples.study.drawings import common
from examples.study.questions import temperatures as question
from examples.study.statistics import mean

_COLOURS = {"two-sided": common.TWO_SIDED, "one-sided": common.ONE_SIDED}
_NEG, _POS = r"$\tau_\mathrm{neg}$", r"$\tau_\mathrm{pos}$"
_MARKERS = {1: ("^", _NEG + " > " + _POS), -1: ("v", _NEG + " < " + _POS), 0: ("o", _NEG + " = " + _POS)}


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    return "" if any(one.sweep == "temperatures" for one in study.results) else "temperatures"


def draw(study: Study, path: Path) -> None:
    """Draws a panel for each form, with a marker for each direction."""
    from matplotlib.lines import Line2D

    figure = common.new_figure(11, 5)
    axes = figure.subplots(1, 2, sharey=True)
    cell = study.cell(STALE_UPDATES)
    labels = []
    for axis, form in zip(axes, question.FORMS, strict=True):
        first = axis is axes[0]
        common.style(
            axis,
            form,
            x=r"$\sqrt{\tau_\mathrm{neg}\,\tau_\mathrm{pos}}$, logarithmic",
            y="pass@1 after the last update" if first else "",
        )
        axis.set_xscale("log")
        for taus in question.TAUS:
            labels.append(question.label(taus, form))
            runs = study.runs(labels[-1], cell)
            if runs:
                direction = (taus[0] > taus[1]) - (taus[0] < taus[1])
                # both directions have one size: they are drawn beside each other
                at = math.sqrt(math.prod(taus)) * 1.07**-direction
                values = list(finals(runs).values())
                found = mean(values)
                colour = _COLOURS[form]
                axis.scatter([at] * len(values), values, s=10, color=colour, alpha=0.35, linewidth=0)
                axis.plot([at], [found.mean], color=colour, marker=_MARKERS[direction][0], markersize=8)
                if found.low is not None:
                    axis.plot([at] * 2, [found.low, found.high], color=colour, linewidth=1.8)
        sizes = sorted({math.sqrt(math.prod(taus)) for taus in question.TAUS})
        axis.set_xticks(sizes, [f"{size:.2g}" for size in sizes])
        axis.minorticks_off()
        axis.set_ylim(-0.03, 1.03)
    handles = [Line2D([], [], color="black", marker=mark, linestyle="", label=name) for mark, name in _MARKERS.values()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=10)
    common.finish(
        figure,
        path,
        title=f"Direction and size of AtanLog's temperatures, {cell}",
        footnote="Small points: seeds. Markers: mean over seeds, with its 95 % bootstrap interval. "
        f"{common.seeds(study, labels, [cell]).capitalize()}.",
    )
