"""The figure of the gates: f(ρ; Â) and w(ρ; Â) against the importance ratio ρ."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from megatron_sspo.objective import AtanLog, Clip, ExpAtan, ExpSig, Gate, Gumbel, Pessimistic, SigLog, Sigmoid
from megatron_sspo.plots.picture import check_output, import_matplotlib, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Heavy-tailed arctan gates have warm colours, sigmoid gates cool ones, and the methods that SSPO is compared to grey.
_GATES: list[tuple[str, Gate, dict]] = [
    ("AtanLog", AtanLog(), {"color": "#c1121f", "linewidth": 2.6, "zorder": 5}),
    ("ExpAtan", ExpAtan(), {"color": "#f4a261"}),
    ("SigLog", SigLog(), {"color": "#1d4ed8"}),
    ("ExpSig", ExpSig(), {"color": "#38bdf8"}),
    ("Gumbel", Gumbel(), {"color": "#2a9d8f"}),
    ("AtanLog, pessimistic", Pessimistic(AtanLog()), {"color": "#c1121f", "linestyle": ":", "linewidth": 2.2}),
    ("Sigmoid (SAPO)", Sigmoid(), {"color": "#6b7280"}),
    ("Clip (GRPO)", Clip(), {"color": "#111827", "linewidth": 1.4}),
]


def plot_gates(path: Path) -> None:
    """Draws f(ρ; Â) and w(ρ; Â) of every gate at its default parameters, a row for each sign of the advantage.

    The figure follows Figure 1 of arXiv 2602.19327.

    Raises:
        UserError: `path` cannot be written.
    """
    check_output(path)
    matplotlib = import_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        # Figure instead of pyplot: it needs no display and leaves no global state.
        figure = Figure(figsize=(11, 8), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True, sharey="col")
        for row, advantage in zip(axes, (1.0, -1.0), strict=True):
            _draw_row(row[0], row[1], advantage)
        axes[0, 0].set_title("gate  $f(\\rho; \\hat A)$")
        axes[0, 1].set_title("token weight  $w(\\rho; \\hat A) = \\rho\\, f' / f$")
        for bottom in axes[1]:
            bottom.set_xlabel("importance ratio  $\\rho$")
        figure.suptitle(_title(), fontsize=11)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False)
        write_picture(figure, path, dpi=150)


def _draw_row(gate_axes: "Axes", weight_axes: "Axes", advantage: float) -> None:
    ratio = torch.linspace(0.002, 3.0, 1500, dtype=torch.float64)
    sign = torch.tensor(advantage, dtype=torch.float64)
    for name, gate, style in _GATES:
        style = {"linewidth": 1.8, "linestyle": "-" if advantage > 0 else "--", **style}
        gate_axes.plot(ratio, gate.log_gate(ratio.log(), sign).exp(), label=name, **style)
        weight_axes.plot(ratio, gate.weight(ratio.log(), sign), label=name, **style)
    for axes in (gate_axes, weight_axes):
        axes.axvline(1.0, color="#9ca3af", linewidth=0.8, linestyle=":", zorder=0)
        axes.grid(alpha=0.2)
        axes.set_xlim(0, 3)
    gate_axes.plot(ratio, ratio, color="#d1d5db", linewidth=1.0, zorder=1)
    gate_axes.annotate(
        "$f = \\rho$", (2.62, 2.62), xytext=(-6, 6), textcoords="offset points", ha="right", color="#6b7280"
    )
    gate_axes.set_ylim(0, 3.6)
    weight_axes.set_ylim(-0.03, 1.2)
    gate_axes.set_ylabel("$\\hat A > 0$" if advantage > 0 else "$\\hat A \\leq 0$", fontsize=13)


def _title() -> str:
    tempered, sapo, clip = AtanLog(), Sigmoid(), Clip()
    return (
        f"SSPO gates at $\\tau_{{pos}}={tempered.tau_pos}$, $\\tau_{{neg}}={tempered.tau_neg}$;  "
        f"SAPO at $\\tau_{{pos}}={sapo.tau_pos}$, $\\tau_{{neg}}={sapo.tau_neg}$;  "
        f"Clip at $\\varepsilon={clip.eps_low}$"
    )
