"""Question b: tokens that moved against their advantage beside pass@1, and the cosines of the gradients."""

from pathlib import Path
from typing import Any

from examples.study.data import STALE_UPDATES, Curve, Result, Study
from examples.study.drawings import common
from examples.study.forms import GATES, Forms
from examples.study.questions import direction, mass
from examples.study.statistics import nested_mean

_BY_NAME = {gate.name: gate for gate in GATES}
_SHOWN = _BY_NAME["AtanLog"]
_COSINES = [_BY_NAME[name] for name in ("AtanLog", "SAPO", "GRPO")]
_SIDES = (("two_sided", common.TWO_SIDED), ("one_sided", common.ONE_SIDED))
_WIDTHS = (3.0, 1.5)  # so that both lines show where they coincide


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    cells = [study.cell(STALE_UPDATES, factor) for factor in (1, 3)]
    found = any(study.runs(getattr(_SHOWN, side), cell) for side, _ in _SIDES for cell in cells)
    return "" if found or study.cosines else "staleness cells and cosines"


def draw(study: Study, path: Path) -> None:
    """Draws a column of three panels for each learning rate, and one of cosines."""
    figure = common.new_figure(14, 9)
    axes = figure.subplots(3, 3)
    for column, factor in enumerate((1, 3)):
        _draw_runs([axes[row, column] for row in range(3)], study, factor)
    for axis, gate in zip(axes[:, 2], _COSINES, strict=True):
        _draw_cosines(axis, study, gate)
    names = {
        "two-sided": common.TWO_SIDED,
        "one-sided": common.ONE_SIDED,
        "ceiling: halves of fresh responses": "black",
    }
    common.legend(figure, names)
    counts = common.seeds(
        study, [_SHOWN.two_sided, _SHOWN.one_sided], [study.cell(STALE_UPDATES, factor) for factor in (1, 3)]
    )
    measured = len({one.run for one in study.cosines})
    common.finish(
        figure,
        path,
        title="Does the gate lose the tokens that would pull back? Two-sided against one-sided "
        f"with {STALE_UPDATES} updates per batch",
        footnote=f"{common.BANDS} Left and middle: {counts}; shares are over the {STALE_UPDATES} updates of a cycle.\n"
        f"Right: checkpoints of {measured} run{'' if measured == 1 else 's'}; intervals by bootstrap of runs and of "
        "the checkpoints within each.",
    )


def lost_by_cycle(study: Study, run: Result) -> tuple[Curve, Curve]:
    """Returns by cycle the share of tokens against their advantage, and of these the share with w < ½."""
    lost, moved = dict(mass.lost_of_all(study, run)), dict(study.curve(run, "against"))
    cycles: dict[int, list[float]] = {}
    for update in moved.keys() & lost.keys():
        cycles.setdefault(int(update - 1) // STALE_UPDATES, []).append(update)
    against, share = [], []
    for cycle, updates in sorted(cycles.items()):
        at, total = STALE_UPDATES * (cycle + 1), sum(moved[update] for update in updates)
        against.append((at, total / len(updates)))
        share.append((at, sum(lost[update] for update in updates) / total if total else 0.0))
    return against, share


def _draw_runs(axes: list[Any], study: Study, factor: float) -> None:
    cell = study.cell(STALE_UPDATES, factor)
    titles = (f"held-out pass@1: {_SHOWN.name}, {cell}", "tokens moved against their advantage", "of these: w < ½")
    units = ("pass@1", "share of all tokens", "share of these tokens")
    for axis, title, unit in zip(axes, titles, units, strict=True):
        common.style(axis, title, x="update", y=unit)
    drawn = [False] * len(axes)
    for (side, colour), width in zip(_SIDES, _WIDTHS, strict=True):
        runs = study.runs(getattr(_SHOWN, side), cell).values()
        by_cycle = [lost_by_cycle(study, run) for run in runs]
        found = ([study.curve(run) for run in runs], [one[0] for one in by_cycle], [one[1] for one in by_cycle])
        for place, (axis, of_seeds) in enumerate(zip(axes, found, strict=True)):
            drawn[place] |= common.draw_band(axis, of_seeds, colour, thin=place == 0, linewidth=width)
    for axis, any_drawn in zip(axes, drawn, strict=True):
        if not any_drawn:
            common.say_not_run(axis)
    axes[0].set_ylim(-0.03, 1.03)
    for axis in axes[1:]:
        axis.set_ylim(bottom=0)


def _draw_cosines(axis: Any, study: Study, gate: Forms) -> None:
    common.style(axis, f"{gate.name}: cosine with the on-policy gradient", x="k, updates stale", y="cosine")
    staleness = direction.stale_updates(study)
    if not staleness:
        common.say_not_run(axis)
        return
    lines = [(getattr(gate, side), colour, 0.12 * (2 * place - 1)) for place, (side, colour) in enumerate(_SIDES)]
    for label, colour, offset in (*lines, (direction.CEILING, "black", 0.0)):
        by_run: dict[int, dict[str, list[float]]] = {k: {} for k in staleness}
        for k in staleness:
            for (run, _), cosine in direction.cosines(study, label, k).items():
                by_run[k].setdefault(run, []).append(cosine)
        found = [(k, nested_mean(list(groups.values()))) for k, groups in by_run.items() if groups]
        line = {
            "color": colour,
            "marker": "o",
            "markersize": 4,
            "linestyle": "--" if label == direction.CEILING else "-",
        }
        axis.plot([k + offset for k, _ in found], [one.mean for _, one in found], **line)
        for k, one in found:
            if one.low is not None:
                axis.plot([k + offset] * 2, [one.low, one.high], color=colour, linewidth=1.4)
    axis.set_xticks(staleness)
