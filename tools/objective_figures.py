"""Draws the figures of the pages of objectives: `python -m tools.objective_figures`.

Each figure has what the objective itself computes for responses of one token: the weight in its value, and the
coefficient of Â ∇ log π in its gradient.
"""

from pathlib import Path
from typing import Any

import torch

from megatron_sspo import objective as objectives
from megatron_sspo.objective import AtanLog, Pessimistic, Segments, SequenceObjective
from sspo_lab.drawing import import_matplotlib, write_picture

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PROBABILITY = 0.3  # π_old of the token, which some rows depend on
OVERVIEW = [
    *("grpo", "dapo", "dual_clip", "scopic", "pspo", "ce_gppo", "cispo", "aspo"),
    *("spo", "drpo", "dppo_tv", "dppo_kl", "gmpo_wide", "luspo", "vespo", "sspo"),
]
PAGES = {
    **{name: (name,) for name in ("sspo", "grpo", "gspo", "gmpo", "sapo", "dapo", "dr_grpo", "dual_clip", "luspo")},
    **{
        name: (name,) for name in ("rloo", "scopic", "pspo", "ce_gppo", "cispo", "aspo", "spo", "drpo", "opsm", "vespo")
    },
    **{name: (name,) for name in ("topr", "dgpo", "maspo", "ipo")},
    "dppo": ("dppo_tv", "dppo_kl"),
    "pessimistic": ("pessimistic",),
}
_SIGNS = ((1.0, "Â > 0", {"color": "#1d4ed8"}), (-1.0, "Â < 0", {"color": "#c1121f", "linestyle": "--"}))


def objective_of(name: str) -> SequenceObjective:
    """Returns the objective of that name with its defaults; its average, if it needs a length, has the length 1."""
    if name == "pessimistic":
        return objectives.sspo(Pessimistic(AtanLog()))
    make = getattr(objectives, name)
    return make(1.0) if name == "dr_grpo" else make()


def curves(objective: Any, ratio: torch.Tensor, advantage: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weight w of responses of one token and ∂(w Â)/∂ log π / Â: [n] -> [n], [n]."""
    old = torch.full_like(ratio, PROBABILITY).log()
    log_probs = (old + ratio.log()).requires_grad_()
    segments = Segments.from_lengths([1] * len(ratio))
    sums = objective(log_probs, old, torch.full_like(ratio, advantage), segments)
    return sums.sequences["sequence_weight"], -torch.autograd.grad(sums.loss, log_probs)[0] / advantage


def main() -> None:
    """Draws all figures."""
    matplotlib = import_matplotlib()
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        print(_draw_overview(IMAGES / "zoo.png"))
        for page, names in PAGES.items():
            print(_draw_page(names, IMAGES / "objectives" / f"{page}.png"))


def _draw_overview(output: Path) -> Path:
    from matplotlib.figure import Figure

    ratio = torch.linspace(0.01, 3.0, 600, dtype=torch.float64)
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(4, 4, sharex=True, sharey=True)
    for panel, name in zip(axes.flat, OVERVIEW, strict=True):
        for advantage, label, style in _SIGNS:
            panel.plot(ratio, curves(objective_of(name), ratio, advantage)[1], linewidth=1.6, label=label, **style)
        _finish(panel, f"{name}()")
        panel.set_ylim(-0.6, 3.2)
    for panel in axes[-1]:
        panel.set_xlabel("importance ratio ρ")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    write_picture(figure, output, dpi=80)
    return output


def _draw_page(names: tuple[str, ...], output: Path) -> Path:
    from matplotlib.figure import Figure

    is_narrow = names == ("gspo",) or names == ("luspo",)  # whose bounds are within a thousandth of 1
    ends = (0.998, 1.002) if is_narrow else (0.01, 3.0)
    ratio = torch.linspace(*ends, 600, dtype=torch.float64)
    figure = Figure(figsize=(7.5, 2.7 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 2, squeeze=False)
    for row, name in zip(axes, names, strict=True):
        for advantage, label, style in _SIGNS:
            for panel, values in zip(row, curves(objective_of(name), ratio, advantage), strict=True):
                panel.plot(ratio, values, linewidth=1.6, label=label, **style)
        suffix = f", {name}()" if len(names) > 1 else ""
        _finish(row[0], f"weight w_i, without a factor{suffix}")
        _finish(row[1], f"coefficient of Â ∇ log π{suffix}")
        for panel in row:
            panel.set_xlabel("importance ratio ρ")
            panel.set_ylim(*((0.998, 1.002) if is_narrow and panel is row[0] else (-0.6, 3.2)))
    axes[0, 0].legend(frameon=False)
    output.parent.mkdir(exist_ok=True)
    write_picture(figure, output, dpi=80)
    return output


def _finish(panel: Any, title: str) -> None:
    panel.axvline(1.0, color="#9ca3af", linewidth=0.7)
    panel.axhline(0.0, color="#9ca3af", linewidth=0.7)
    panel.set_title(title, fontsize=9)


if __name__ == "__main__":
    main()
