"""The curves of runs, side by side: reward, entropy, KL, ratios, gate weights, lengths."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_sspo import sinks

_SMOOTHING = 0.1  # weight of the newest value in the exponential mean; the raw curve stays visible behind it


@dataclass(frozen=True)
class _Panel:
    """A title, and either one curve a run or a band of quantiles a run."""

    title: str
    key: str
    logarithmic: bool = False
    band: bool = False  # key/p10 to key/p90 around key/p50


_PANELS = (
    _Panel("reward", "reward/mean"),
    _Panel("held-out pass@1 (greedy)", "pass@1"),
    _Panel("token entropy (nats)", "policy/entropy"),
    _Panel("KL(π_old‖π_θ)", "policy/kl_old", logarithmic=True),
    _Panel("log ratio, p10 to p90", "log_ratio", band=True),
    _Panel("token weight w, p10 to p90", "token_weight", band=True),
    _Panel("sequence weight, p10 to p90", "sequence_weight", band=True),
    _Panel("response tokens", "response/tokens_mean"),
    _Panel("gradient norm", "policy/grad_norm", logarithmic=True),
)


def plot_run(folder: Path) -> Path:
    """Draws one run into its own folder; the path of the picture."""
    path = folder / "curves.png"
    plot_runs([folder], path)
    return path


def plot_runs(folders: Sequence[Path], path: Path) -> None:
    """Draws runs over one another, one colour each.

    Raises:
        UserError: a folder is not that of a run, or its metrics cannot be read.
    """
    runs = {_label(folder, folders): _read(folder) for folder in folders}
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 3, figsize=(13, 9), constrained_layout=True)
    for axis, panel in zip(axes.flat, _PANELS, strict=True):
        for number, (label, (rows, evaluations)) in enumerate(runs.items()):
            _draw(axis, panel, evaluations if panel.key == "pass@1" else rows, f"C{number}", label)
        axis.set_title(panel.title, fontsize=10)
        axis.grid(alpha=0.25)
        if panel.logarithmic and _has_positive(axis):
            axis.set_yscale("log")
    for axis in axes[-1]:
        axis.set_xlabel("update")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.png")
    figure.savefig(temporary, dpi=120)
    pyplot.close(figure)
    temporary.rename(path)


def _draw(axis: Any, panel: _Panel, rows: Sequence[Mapping[str, float]], colour: str, label: str) -> None:
    suffix = "/p50" if panel.band else ""
    points = [(row["update"], row[panel.key + suffix]) for row in rows if panel.key + suffix in row]
    if not points:
        return
    updates, values = zip(*points, strict=True)
    if panel.band:
        low, high = ([row[f"{panel.key}/{q}"] for row in rows] for q in ("p10", "p90"))
        axis.fill_between(updates, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(updates, values, color=colour, label=label)
    elif panel.key == "pass@1":
        axis.plot(updates, values, color=colour, label=label, marker="o", markersize=4)
    else:
        axis.plot(updates, values, color=colour, alpha=0.25, linewidth=0.8)
        axis.plot(updates, _smoothed(values), color=colour, label=label)


def _smoothed(values: Sequence[float]) -> list[float]:
    smoothed = [values[0]]
    for value in values[1:]:
        smoothed.append((1 - _SMOOTHING) * smoothed[-1] + _SMOOTHING * value)
    return smoothed


def _has_positive(axis: Any) -> bool:
    return any((line.get_ydata() > 0).any() for line in map(_as_array, axis.lines))


def _as_array(line: Any) -> Any:
    import numpy

    line.set_ydata(numpy.asarray(line.get_ydata(), dtype=float))
    return line


def _read(folder: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    evaluations = folder / sinks.EVALUATIONS
    return sinks.read(folder / sinks.METRICS), sinks.read(evaluations) if evaluations.exists() else []


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """The folder's name, or the whole path where two folders share a name."""
    return str(folder) if [other.name for other in folders].count(folder.name) > 1 else folder.name
