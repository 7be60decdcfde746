"""The curves of runs, side by side: reward, entropy, KL, ratios, gate weights, lengths."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_sspo import sinks

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's
_INK, _FAINT = "#333333", "#dddddd"
_WINDOW = 0.08  # of the run: what a smoothed curve is the mean over; the raw curve stays visible behind it
_WIDE = 30.0  # largest over smallest value, from which on an axis is logarithmic where that is allowed

_STEPS = (1, 2, 2.5, 5, 10)
_PASS = "pass@1"  # of every set: `<set>/pass@1` of evaluations.jsonl
_DASHES = ("-", "--", ":", "-.")  # of the sets

Row = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One plot: a curve a run, or a band of quantiles a run."""

    title: str
    key: str
    may_be_logarithmic: bool = False
    band: bool = False  # p01 to p99 and p10 to p90 around p50
    off_policy: bool = False  # leaves out updates on the sampler's own weights, whose ratios are 1 by construction


_PANELS = (
    _Panel(title="reward", key="reward/mean"),
    _Panel(title="held-out pass@1, greedy", key=_PASS),
    _Panel(title="response length, tokens", key="response/tokens_mean"),
    _Panel(title="token entropy, nats", key="policy/entropy"),
    _Panel(title="gradient norm", key="policy/grad_norm", may_be_logarithmic=True),
    _Panel(
        title=r"KL$\,(\pi_\mathrm{old}\,\Vert\,\pi_\theta)$ *",
        key="policy/kl_old",
        may_be_logarithmic=True,
        off_policy=True,
    ),
    _Panel(title="log ratio, log ρ *", key="log_ratio", band=True, off_policy=True),
    _Panel(title="token weight, w *", key="token_weight", band=True, off_policy=True),
    _Panel(title="sequence weight *", key="sequence_weight", band=True, off_policy=True),
)
_FOOTNOTE = (
    "* without the first update after each sync, whose ratios are 1 by construction.   "
    "Bands: p10 to p90, p01 to p99; line: median."
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
    from matplotlib.lines import Line2D

    colours = {label: _COLOURS[number % len(_COLOURS)] for number, label in enumerate(runs)}
    figure, axes = pyplot.subplots(3, 3, figsize=(13, 9), layout="constrained")
    layout: Any = figure.get_layout_engine()
    layout.set(h_pad=0.1, w_pad=0.12)
    sets = list(dict.fromkeys(name for _, evaluations in runs.values() for row in evaluations for name in _sets(row)))
    for axis, panel in zip(axes.flat, _PANELS, strict=True):
        drawn = [
            _draw_sets(axis, evaluations, sets, colours[label])
            if panel.key == _PASS
            else _draw(axis, panel, rows, colours[label])
            for label, (rows, evaluations) in runs.items()
        ]
        _dress(axis, panel, [value for values in drawn for value in values])
        if panel.key == _PASS and len(sets) > 1:
            dashes = zip(sets, _DASHES * len(sets), strict=False)
            lines = [Line2D([], [], color=_INK, linestyle=dash, label=name) for name, dash in dashes]
            axis.legend(handles=lines, frameon=False, fontsize=8.5)
    last = max((row["update"] for rows, _ in runs.values() for row in rows), default=1)
    for axis in axes.flat:
        axis.set_xlim(-0.02 * last, 1.02 * last)
    for axis in axes[-1]:
        axis.set_xlabel("update", color=_INK)
    handles = [Line2D([], [], color=colour, linewidth=2.5, label=label) for label, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(runs)), frameon=False, fontsize=12)
    figure.supxlabel(_FOOTNOTE, fontsize=8.5, color="#777777")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.png")
    figure.savefig(temporary, dpi=120)
    pyplot.close(figure)
    temporary.rename(path)


def _draw(axis: Any, panel: _Panel, rows: Sequence[Row], colour: str) -> list[float]:
    """Draws one run, and returns the values by which the axis is scaled."""
    key = f"{panel.key}/p50" if panel.band else panel.key
    rows = [row for row in rows if key in row and not (panel.off_policy and row.get("policy/kl_old") == 0)]
    updates, values = [row["update"] for row in rows], [row[key] for row in rows]
    if not rows:
        return []
    if panel.band:
        for low, high, alpha in (("p01", "p99", 0.12), ("p10", "p90", 0.25)):
            edges = ([row[f"{panel.key}/{q}"] for row in rows] for q in (low, high))
            axis.fill_between(updates, *edges, color=colour, alpha=alpha, linewidth=0)
        axis.plot(updates, values, color=colour, linewidth=1.8)
    else:
        axis.plot(updates, values, color=colour, alpha=0.25, linewidth=0.9)
        axis.plot(updates, _smoothed(values), color=colour, linewidth=1.8)
    return values


def _draw_sets(axis: Any, rows: Sequence[Row], sets: Sequence[str], colour: str) -> list[float]:
    """Draws pass@1 of every set, with its interval where there is one; sets differ by their dashes."""
    drawn: list[float] = []
    for place, name in enumerate(sets):
        key = f"{name}/{_PASS}" if name else _PASS
        found = [row for row in rows if key in row]
        updates, values = [row["update"] for row in found], [row[key] for row in found]
        if found and all(f"{key}/low" in row for row in found):
            low, high = ([row[f"{key}/{end}"] for row in found] for end in ("low", "high"))
            axis.fill_between(updates, low, high, color=colour, alpha=0.1, linewidth=0)
        style = {"linestyle": _DASHES[place % len(_DASHES)], "marker": "o", "markersize": 4}
        axis.plot(updates, values, color=colour, linewidth=1.8, **style)
        drawn += values
    return drawn


def _sets(row: Row) -> list[str]:
    """The names of the sets of an evaluation; "" where the number has no set's name before it."""
    return [key.removesuffix(_PASS).rstrip("/") for key in row if key.endswith(_PASS)]


def _dress(axis: Any, panel: _Panel, values: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    axis.set_title(panel.title, fontsize=11, loc="left", color=_INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.tick_params(colors=_INK, labelsize=9, length=3)
    axis.grid(color=_FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
    if not values:
        axis.set(xticks=[], yticks=[])
        text = "every update is on-policy" if panel.off_policy else "no values"
        axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#999999")
        return
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=_STEPS))
    if panel.key == _PASS:
        axis.set_ylim(-0.03, 1.03)
    if panel.may_be_logarithmic and min(values) > 0 and max(values) > _WIDE * min(values):
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(numticks=5))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        axis.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=_STEPS))
        axis.ticklabel_format(axis="y", scilimits=(-3, 4), useOffset=False)


def _smoothed(values: Sequence[float]) -> list[float]:
    """The mean over a window around each value. It does not lag, as a running mean of the past would."""
    half = math.ceil(len(values) * _WINDOW / 2)
    windows = (values[max(0, place - half) : place + half + 1] for place in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _read(folder: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    evaluations = folder / sinks.EVALUATIONS
    return sinks.read(folder / sinks.METRICS), sinks.read(evaluations) if evaluations.exists() else []


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """The folder's name, or the whole path where two folders share a name, and the run's gate."""
    name = folder.resolve().name
    if [other.resolve().name for other in folders].count(name) > 1:
        name = str(folder)
    gate = _gate(folder / "config.json")
    return f"{name} ({gate})" if gate else name


def _gate(config: Path) -> str:
    """The class of the run's token gate, or of its sequence gate where tokens have none; "" where none is on record."""
    try:
        objective = json.loads(config.read_text())["objective"]
        gates = [objective[gate]["class"] for gate in ("token_gate", "sequence_gate")]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return next((gate for gate in gates if gate != "Identity"), "")
