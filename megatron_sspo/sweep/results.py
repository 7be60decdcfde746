"""The results of a sweep's finished runs: one curve per run, by setting and by value of the compared field."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.run_folder import metrics_files
from megatron_sspo.sweep.folder import read_sweep, status
from megatron_sspo.sweep.grid import Cell, Sweep

Curve = Sequence[tuple[float, float]]  # (update, value)
Row = Mapping[str, float]

_GREEDY, _REWARD = "pass@1", "reward/mean"


@dataclass(frozen=True, kw_only=True)
class Results:
    """The finished runs of a sweep.

    Attributes:
        measure: the name of the measure for titles.
        field: the compared field; "" if nothing is varied.
        values: the labels of the field's values.
        settings: the combinations of the other fields' values, such as "updates_per_sync=2"; [""] if there are none.
        curves: (value, setting) -> a curve for each seed.
        unfinished: the names of the unfinished runs, which are left out.
    """

    measure: str
    field: str
    values: Sequence[str]
    settings: Sequence[str]
    curves: Mapping[tuple[str, str], Sequence[Curve]]
    unfinished: Sequence[str]

    def finals(self, value: str) -> dict[str, list[float]]:
        """Returns the last value of each run's curve by setting, for settings with a finished run."""
        return self._of(value, lambda curve: curve[-1][1])

    def areas(self, value: str) -> dict[str, list[float]]:
        """Returns each run's area under the curve divided by the width (the mean height), by setting."""
        return self._of(value, area)

    def _of(self, value: str, number: Callable[[Curve], float]) -> dict[str, list[float]]:
        found = {setting: self.curves.get((value, setting), ()) for setting in self.settings}
        return {setting: [number(curve) for curve in curves] for setting, curves in found.items() if curves}


def read_results(folder: Path, *, measure: str = "", compare: str = "") -> Results:
    """Reads the metrics of a sweep's finished runs.

    Args:
        folder: the sweep's folder.
        measure: the name of a number in evaluations.jsonl or metrics.jsonl; without a set's name, the mean over the
            sets. The default is pass@1, or the mean reward if a run has no evaluation.
        compare: the varied field whose values are compared; by default the first one.

    Raises:
        UserError: no run is finished, or the field or number does not exist.
    """
    sweep = read_sweep(folder)
    field = compare or next(iter(sweep.vary), "")
    if field and field not in sweep.vary:
        raise UserError(
            f"--compare {field} is not varied in {folder}: choose from {', '.join(sweep.vary) or 'nothing'}"
        )
    cells = sweep.cells()
    finished = [cell for cell in cells if status(folder / cell.name).state == "finished"]
    if not finished:
        raise UserError(f"no run of the sweep in {folder} is finished yet: wait for the first")
    measure = measure or _default(folder / finished[0].name)
    curves: dict[tuple[str, str], list[Curve]] = {}
    keys: dict[str, list[str]] = {}
    for cell in finished:
        keys[cell.name], curve = read_curve(folder / cell.name, measure)
        curves.setdefault((cell.labels.get(field, ""), _setting(cell, field)), []).append(curve)
    _check_same_numbers(keys, measure)
    done = {cell.name for cell in finished}
    return Results(
        measure=_words(keys[finished[0].name], measure),
        field=field,
        values=_labels(sweep, field),
        settings=list(dict.fromkeys(_setting(cell, field) for cell in _in_order(sweep, cells))),
        curves=curves,
        unfinished=[cell.name for cell in cells if cell.name not in done],
    )


def read_curve(folder: Path, measure: str) -> tuple[list[str], Curve]:
    """Returns the names of the measure's numbers, one for each set, and a run's curve of their mean.

    Raises:
        UserError: the run does not have the number, or a value is not finite.
    """
    known: list[str] = []
    for file in (metrics_files.EVALUATIONS, metrics_files.METRICS):
        rows = metrics_files.read_complete_rows(folder / file)
        last = rows[-1] if rows else {}
        keys = [measure] if measure in last else [key for key in last if key.partition("/")[2] == measure]
        if keys:
            return keys, [(row["update"], _mean(folder / file, row, keys)) for row in rows if keys[0] in row]
        known += [key for key in last if key != "update" and not key.endswith(("/low", "/high"))]
    raise UserError(f"{folder} has no number {short_repr(measure)}: choose from {', '.join(known)}")


def area(curve: Curve) -> float:
    """Returns the mean height of a curve by the trapezoidal rule; for a single point, its value."""
    width = curve[-1][0] - curve[0][0]
    if width <= 0:
        return curve[-1][1]
    steps = itertools.pairwise(curve)
    return math.fsum((after[0] - before[0]) * (before[1] + after[1]) / 2 for before, after in steps) / width


def _default(folder: Path) -> str:
    rows = metrics_files.read_complete_rows(folder / metrics_files.EVALUATIONS)
    return _GREEDY if any(key.endswith(f"/{_GREEDY}") for key in (rows[-1] if rows else {})) else _REWARD


def _mean(path: Path, row: Row, keys: Sequence[str]) -> float:
    values = [row.get(key, math.nan) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UserError(
                f"{path} has {key} {short_repr(value)} at update {row['update']}, which is not a finite number: choose "
                "another --measure"
            )
    return math.fsum(values) / len(values)


def _check_same_numbers(keys: Mapping[str, Sequence[str]], measure: str) -> None:
    """Raises UserError if runs have the measure of different sets, whose means say nothing about the runs."""
    (first, expected), *others = keys.items()
    for name, found in others:
        if set(found) != set(expected):
            shared = [key for key in expected if all(key in of_run for of_run in keys.values())]
            remedy = f"choose --measure {shared[0]}" if shared else "choose another --measure, which all runs have"
            raise UserError(
                f"{measure} is the mean over {_listed(expected)} in the run {first}, and over {_listed(found)} in the "
                f"run {name}: {remedy}"
            )


def _listed(keys: Sequence[str]) -> str:
    return " and ".join(keys)


def _words(keys: Sequence[str], measure: str) -> str:
    sets = [key.removesuffix(f"/{measure}") for key in keys]
    return measure if keys == [measure] else f"{measure} of {', '.join(sets)}"


def _labels(sweep: Sweep, field: str) -> list[str]:
    return [value.label for value in sweep.vary[field]] if field else [""]


def _setting(cell: Cell, field: str) -> str:
    return ", ".join(f"{name}={label}" for name, label in cell.labels.items() if name != field)


def _in_order(sweep: Sweep, cells: Sequence[Cell]) -> list[Cell]:
    """Sorts cells by the order of their fields' values, not by the order in which the runs were added."""
    places = {name: {value.label: place for place, value in enumerate(values)} for name, values in sweep.vary.items()}
    return sorted(cells, key=lambda cell: [places[name][label] for name, label in cell.labels.items()])
