"""Question a: final of every gate in both forms."""

from pathlib import Path

from examples.study.data import STALE_UPDATES, Study, finals
from examples.study.drawings import common
from examples.study.forms import CORE_GATES, GATES

_PANELS = ((1, GATES), (3, CORE_GATES))


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    found = any(
        study.runs(label, study.cell(STALE_UPDATES, factor))
        for factor, gates in _PANELS
        for gate in gates
        for label in (gate.two_sided, gate.one_sided)
    )
    return "" if found else "staleness cells"


def draw(study: Study, path: Path) -> None:
    """Draws a panel for each learning rate, with two groups of points for each gate."""
    figure = common.new_figure(15, 5.6)
    axes = figure.subplots(1, 2, sharey=True, width_ratios=[len(gates) for _, gates in _PANELS])
    for axis, (factor, gates) in zip(axes, _PANELS, strict=True):
        cell = study.cell(STALE_UPDATES, factor)
        common.style(axis, str(cell), y="pass@1 after the last update" if factor == 1 else "")
        starts = []
        for place, gate in enumerate(gates):
            for side, (label, colour) in enumerate(
                ((gate.two_sided, common.TWO_SIDED), (gate.one_sided, common.ONE_SIDED))
            ):
                runs = study.runs(label, cell)
                starts += [run.first for run in runs.values()]
                common.draw_points(axis, 1.5 * place + 0.6 * side - 0.3, list(finals(runs).values()), colour)
        if starts:
            axis.axhline(sum(starts) / len(starts), color="#999999", linewidth=1, linestyle="--", zorder=1)
        names = [gate.name.replace(" of ", "\nof ") for gate in gates]
        axis.set_xticks([1.5 * place for place in range(len(gates))], names, rotation=30, ha="right")
        axis.set_xlim(-0.9, 1.5 * len(gates) - 0.6)
        axis.grid(visible=False, axis="x")
        axis.set_ylim(-0.03, 1.03)
    common.legend(
        figure, {"two-sided": common.TWO_SIDED, "one-sided": common.ONE_SIDED, "start (mean), dashed": "#999999"}
    )
    labels = [label for gate in GATES for label in (gate.two_sided, gate.one_sided)]
    counts = common.seeds(study, labels, [study.cell(STALE_UPDATES, factor) for factor in (1, 3)])
    common.finish(
        figure,
        path,
        title=f"Final held-out pass@1 of every gate, two-sided against one-sided, "
        f"with {STALE_UPDATES} updates per batch",
        footnote=f"{common.SEEDS} {counts.capitalize()}.",
    )
