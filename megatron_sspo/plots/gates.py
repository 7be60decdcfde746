"""The figure of the gates: f(ρ; Â) and w(ρ; Â) against the importance ratio ρ."""

from pathlib import Path

import torch

from megatron_sspo.objective import AtanLog, Clip, ExpAtan, ExpSig, Gate, Gumbel, Pessimistic, SigLog, Sigmoid

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
    """Draws f(ρ; Â) and w(ρ; Â) of every gate at its defaults, a row for each sign of Â, as Figure 1 of the paper.

    Raises LabError if `path` cannot be written.
    """
    from sspo_lab.drawing import check_output, import_matplotlib, write_picture

    check_output(path)
    matplotlib = import_matplotlib()
    from matplotlib.figure import Figure

    ratio = torch.linspace(0.002, 3.0, 1500, dtype=torch.float64)
    with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 8), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True, sharey="col")
        for (gate_axes, weight_axes), advantage in zip(axes, (1.0, -1.0), strict=True):
            sign = torch.tensor(advantage, dtype=torch.float64)
            for name, gate, style in _GATES:
                style = {"linewidth": 1.8, "linestyle": "-" if advantage > 0 else "--", "label": name, **style}
                gate_axes.plot(ratio, gate.log_gate(ratio.log(), sign).exp(), **style)
                weight_axes.plot(ratio, gate.weight(ratio.log(), sign), **style)
            gate_axes.plot(ratio, ratio, color="#d1d5db", linewidth=1.0, zorder=1)
            gate_axes.text(2.55, 2.7, "$f = \\rho$", ha="right", color="#6b7280")
            gate_axes.set(ylim=(0, 3.6), ylabel="$\\hat A > 0$" if advantage > 0 else "$\\hat A \\leq 0$")
            weight_axes.set(ylim=(-0.03, 1.2))
            for each in (gate_axes, weight_axes):
                each.axvline(1.0, color="#9ca3af", linewidth=0.8, linestyle=":", zorder=0)
                each.grid(alpha=0.2)
                each.set(xlim=(0, 3), xlabel="" if advantage > 0 else "importance ratio  $\\rho$")
        axes[0, 0].set_title("gate  $f(\\rho; \\hat A)$")
        axes[0, 1].set_title("token weight  $w(\\rho; \\hat A) = \\rho\\, f' / f$")
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=8, frameon=False)
        write_picture(figure, path, dpi=150)
