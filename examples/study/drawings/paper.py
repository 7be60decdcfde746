"""The paper's figures by this code: the gates, and reward and entropy of the objectives (arXiv 2602.19327)."""

from pathlib import Path
from typing import Any

import torch

from examples.study.data import STALE_UPDATES, Study
from examples.study.drawings import common
from megatron_sspo.objective import AtanLog, ExpAtan, ExpSig, Gate, Gumbel, Pessimistic, SigLog
from sspo_lab.drawing import COLOURS

_GATES: dict[str, tuple[Gate, str]] = {
    "AtanLog": (AtanLog(), COLOURS[1]),
    "ExpAtan": (ExpAtan(), COLOURS[4]),
    "SigLog": (SigLog(), COLOURS[0]),
    "ExpSig": (ExpSig(), COLOURS[5]),
    "Gumbel": (Gumbel(), COLOURS[2]),
}
_UPDATES_PER_SYNC = (2, 4, STALE_UPDATES)
_METRICS = {"reward": "training reward", "entropy": "token entropy, nats"}
_WINDOW = 8  # updates, the cycle of the largest μ


def missing(study: Study) -> str:
    """Returns what is missing, or "" if there is something to draw."""
    cells = list(map(study.cell, _UPDATES_PER_SYNC))
    found = any(any(common.curves(study, one, cell, "reward")) for one in common.METHODS for cell in cells)
    return "" if found else "mild and staleness cells"


def draw(study: Study, path: Path) -> None:
    """Draws f and w of the gates above, and a 2 × 3 grid of reward and entropy by μ below."""
    figure = common.new_figure(14, 11.5)
    above, below = figure.subfigures(2, 1, height_ratios=[1, 2.1])
    _draw_gates(above)
    _draw_curves(below, study)
    cells = list(map(study.cell, _UPDATES_PER_SYNC))
    common.finish(
        figure,
        path,
        title="The figures of arXiv 2602.19327 by this code: gates, and reward and entropy by objective",
        footnote=f"Thick: mean over {common.seeds(study, list(common.METHODS), cells)}. Bands: 95 % bootstrap interval "
        f"over seeds. Thin: seeds. Curves are means over {_WINDOW} updates.",
    )


def _draw_gates(figure: Any) -> None:
    from matplotlib.lines import Line2D

    axes = figure.subplots(1, 4, sharex=True)
    ratio = torch.linspace(0.002, 3.0, 1500, dtype=torch.float64)
    panels = [(sign, name) for sign in (1.0, -1.0) for name in ("gate f", "token weight w")]
    for axis, (sign, name) in zip(axes, panels, strict=True):
        common.style(axis, f"{name}, {'Â > 0' if sign > 0 else 'Â ≤ 0'}", x="importance ratio ρ", y=name[-1])
        advantage = torch.tensor(sign, dtype=torch.float64)
        for gate, colour in _GATES.values():
            for one, line in ((gate, "-"), (Pessimistic(gate), ":")):
                weight = name.endswith("w")
                log_ratio = ratio.log()
                height = one.weight(log_ratio, advantage) if weight else one.log_gate(log_ratio, advantage).exp()
                axis.plot(ratio, height, color=colour, linestyle=line, linewidth=1.5)
        axis.axvline(1.0, color="#999999", linewidth=0.8, linestyle=":", zorder=0)
        axis.set_ylim((-0.03, 1.2) if name.endswith("w") else (0, 3.2))
    lines = [Line2D([], [], color=colour, label=name) for name, (_, colour) in _GATES.items()]
    lines.append(Line2D([], [], color="black", linestyle=":", label="dotted: one-sided (pessimistic)"))
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines), frameon=False, fontsize=10)


def _draw_curves(figure: Any, study: Study) -> None:
    axes = figure.subplots(len(_METRICS), len(_UPDATES_PER_SYNC), sharex=True, sharey="row")
    for place, (metric, unit) in enumerate(_METRICS.items()):
        for axis, mu in zip(axes[place], _UPDATES_PER_SYNC, strict=True):
            cell = study.cell(mu)
            common.style(axis, f"{unit.split(',')[0]}: {cell}", x="update" if place else "")
            axis.set_ylabel(unit if axis is axes[place, 0] else "", fontsize=9.5)
            drawn = [
                common.draw_band(
                    axis, list(map(_smoothed, common.curves(study, label, cell, metric))), colour, thin=True
                )
                for label, (_, colour) in common.METHODS.items()
            ]
            if not any(drawn):
                common.say_not_run(axis)
    common.legend(figure, dict(common.METHODS.values()))


def _smoothed(curve: Any) -> list[tuple[float, float]]:
    """Returns the means over consecutive windows, each at its last update."""
    windows = [curve[place : place + _WINDOW] for place in range(0, len(curve), _WINDOW)]
    return [(window[-1][0], sum(value for _, value in window) / len(window)) for window in windows]
