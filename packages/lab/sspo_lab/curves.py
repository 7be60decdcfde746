"""The curves of runs, side by side: reward, entropy, KL, ratios, gate weights, lengths."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sspo_lab.drawing import (
    COLOURS,
    INK,
    check_output,
    draw_frame,
    draw_legend,
    import_matplotlib,
    plain_text,
    shorten,
    smoothed,
    write_picture,
)
from sspo_lab.folder import EVALUATIONS, METRICS
from sspo_lab.results import Row, read_rows
from sspo_lab.trainer import LabError

_WINDOW = 0.08  # the smoothing window, as a share of the run; the raw curve stays visible behind the smoothed one
_WIDE = 30.0  # an axis may become logarithmic if the largest value is more than this times the smallest

_STEPS = (1, 2, 2.5, 5, 10)
_PASS = "pass@1"  # stands for `<set>/pass@1` of evaluations.jsonl of every set
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one per set
_LEVELS, _DASH = 5, 3.0  # the number of dash patterns over each other; the shortest dash in line widths
_LONGEST_SET = 28  # characters of a set's name
_LARGEST = 1e300  # larger values are not drawn, because the axis would overflow


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One plot: a curve or a band of quantiles per run."""

    title: str
    key: str
    may_be_logarithmic: bool = False
    band: bool = False  # p01 to p99 and p10 to p90 around p50
    off_policy: bool = False  # leaves out on-policy updates, whose ratios are 1 by construction


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
    """Draws one run, which may have no rows yet, into its own folder, and returns the path of the picture."""
    path = folder / "curves.png"
    _draw_runs([_label(folder, [folder])], [_read(folder)], path)
    return path


def plot_runs(folders: Sequence[Path], path: Path) -> None:
    """Draws several runs into the same plots, one colour each.

    Raises LabError if a folder is not that of a run, its metrics cannot be read or have no rows, or `path` cannot be
    written.
    """
    runs = [_read(folder) for folder in folders]  # before the output, which is by default in a run
    for folder, rows in zip(folders, runs, strict=True):
        if not any(rows):
            raise LabError(f"{folder / METRICS} has no rows: wait for the first update of the run")
    check_output(path)
    _draw_runs([_label(folder, folders) for folder in folders], runs, path)


def _draw_runs(labels: Sequence[str], runs: Sequence[tuple[Sequence[Row], Sequence[Row]]], path: Path) -> None:
    import_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    styles = [_style(number, len(runs)) for number in range(len(runs))]
    figure = Figure(figsize=(13, 9), layout="constrained")
    axes = figure.subplots(3, 3)
    layout: Any = figure.get_layout_engine()
    layout.set(h_pad=0.1, w_pad=0.12)
    sets = list(dict.fromkeys(name for _, evaluations in runs for row in evaluations for name in _sets(row)))
    for axis, panel in zip(axes.flat, _PANELS, strict=True):
        drawn = [
            _draw_sets(axis, evaluations, sets, style) if panel.key == _PASS else _draw(axis, panel, rows, style)
            for style, (rows, evaluations) in zip(styles, runs, strict=True)
        ]
        _style_axis(axis, panel, [value for values in drawn for value in values])
        if panel.key == _PASS and len(sets) > 1:
            lines = [Line2D([], [], color=INK, marker=_marker(place)) for place in range(len(sets))]
            names = [plain_text(shorten(name, _LONGEST_SET)) for name in sets]
            axis.legend(lines, names, frameon=False, fontsize=8.5)
    last = max((row["update"] for kinds in runs for rows in kinds for row in rows), default=1)
    for axis in axes.flat:
        axis.set_xlim(-0.02 * max(last, 1), 1.02 * max(last, 1))
    for axis in axes[-1]:
        axis.set_xlabel("update", color=INK)
    handles = [Line2D([], [], **{**style, "linewidth": 2.5}) for style in styles]
    draw_legend(figure, handles, labels, size=12 if len(runs) <= 8 else 8)
    figure.supxlabel(_FOOTNOTE, fontsize=8.5, color="#777777")
    write_picture(figure, path, dpi=120)


def _style(number: int, count: int) -> Mapping[str, Any]:
    """Returns the style of one of so many runs. If curves coincide, each shows in the gaps or beside the next's edges.

    All dash patterns start at the same point, and later runs have shorter dashes.
    """
    levels = min(count, _LEVELS)
    level, group = number % levels, number // levels
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": (0, (_DASH * (levels - level), _DASH * level)) if level else "-",
        "linewidth": 1.8 + 0.8 * ((count - 1) // levels - group),
        "markersize": 4 + 1.5 * (levels - 1 - level),
        "zorder": 3 + group + level / levels,
    }


def _draw(axis: Any, panel: _Panel, rows: Sequence[Row], style: Mapping[str, Any]) -> list[float]:
    """Draws one run, and returns the values that determine the axis's scale."""
    key = f"{panel.key}/p50" if panel.band else panel.key
    rows = [row for row in rows if key in row and not (panel.off_policy and row.get("policy/kl_old") == 0)]
    updates, values = [row["update"] for row in rows], _values(rows, key)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    if panel.band:
        for low, high, alpha in (("p01", "p99", 0.12), ("p10", "p90", 0.25)):
            edges = (_values(rows, f"{panel.key}/{q}") for q in (low, high))
            axis.fill_between(updates, *edges, color=style["color"], alpha=alpha, linewidth=0)
    else:
        axis.plot(updates, values, color=style["color"], alpha=0.25, linewidth=0.9)
    marker = "o" if len(finite) <= 2 else ""  # one point gives no line
    axis.plot(updates, values if panel.band else smoothed(values, _WINDOW), **style, marker=marker)
    return finite


def _values(rows: Sequence[Row], key: str) -> list[float]:
    """Returns a column of the metrics, with NaN (a gap in the curve) if a row has no finite number."""
    found = (row.get(key) for row in rows)
    return [float(v) if isinstance(v, (int, float)) and abs(v) < _LARGEST else math.nan for v in found]


def _draw_sets(axis: Any, rows: Sequence[Row], sets: Sequence[str], style: Mapping[str, Any]) -> list[float]:
    """Draws pass@1 of every set with its interval, if it has one; each set has its own marker."""
    drawn: list[float] = []
    for place, name in enumerate(sets):
        key = f"{name}/{_PASS}" if name else _PASS
        found = [row for row in rows if key in row]
        updates, values = [row["update"] for row in found], _values(found, key)
        low, high = (_values(found, f"{key}/{end}") for end in ("low", "high"))
        axis.fill_between(updates, low, high, color=style["color"], alpha=0.1, linewidth=0)
        axis.plot(updates, values, **style, marker=_marker(place))
        drawn += [value for value in values if math.isfinite(value)]
    return drawn


def _marker(place: int) -> str:
    return _MARKERS[place % len(_MARKERS)]


def _sets(row: Row) -> list[str]:
    """Returns the names of the sets of an evaluation; "" for a number without a set's name before it."""
    return [key.removesuffix(_PASS).rstrip("/") for key in row if _PASS in (key, key.partition("/")[2])]


def _style_axis(axis: Any, panel: _Panel, values: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    axis.set_title(panel.title, fontsize=11, loc="left", color=INK)
    draw_frame(axis)
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


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """Returns the folder's name, or its path if two folders share a name, and the run's gate."""
    name, *_ = names = [os.path.basename(os.path.realpath(each)) for each in (folder, *folders)]
    name = str(folder) if names[1:].count(name) > 1 else name
    gate = _gate(folder / "config.json")
    return f"{name} ({gate})" if gate else name


def _gate(config: Path) -> str:
    """Returns the class of the run's token gate, or of its sequence gate if that is the only one; "" if unknown."""
    try:
        objective = json.loads(config.read_text(encoding="utf-8"))["objective"]
        gates = [str(objective[gate]["class"]) for gate in ("token_gate", "sequence_gate")]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return next((gate for gate in gates if gate != "Identity"), "")


def _read(folder: Path) -> tuple[Sequence[Row], Sequence[Row]]:
    """Returns the rows of the metrics and of the evaluations, without the text and the numbers that are not drawn."""
    if not (folder / METRICS).exists():
        raise LabError(f"there is no {folder / METRICS}: is {folder} the folder of a run?")
    drawn = ("update", *(panel.key for panel in _PANELS))
    metrics, evaluations = (
        [{k: v for k, v in row.items() if k.startswith(drawn) or f"/{_PASS}" in k} for row in read_rows(folder / name)]
        for name in (METRICS, EVALUATIONS)
    )
    return metrics, evaluations
