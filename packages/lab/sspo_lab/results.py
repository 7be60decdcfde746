"""The results of a sweep's finished runs: one curve per run, by setting and by value of the compared field."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sspo_lab.folder import EVALUATIONS, METRICS, read_sweep, status
from sspo_lab.trainer import LabError

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
        LabError: no run is finished, or the field or number does not exist.
    """
    sweep = read_sweep(folder)
    field = compare or next(iter(sweep.vary), "")
    if field and field not in sweep.vary:
        raise LabError(f"--compare {field} is not varied in {folder}: choose from {', '.join(sweep.vary) or 'nothing'}")
    cells = sweep.cells()
    finished = [cell for cell in cells if status(folder / cell.name).state == "finished"]
    if not finished:
        raise LabError(f"no run of the sweep in {folder} is finished yet: wait for the first")
    measure = measure or _default(folder / finished[0].name)
    curves: dict[tuple[str, str], list[Curve]] = {}
    keys: dict[str, list[str]] = {}
    for cell in finished:
        keys[cell.name], curve = read_curve(folder / cell.name, measure)
        curves.setdefault((cell.labels.get(field, ""), _setting(cell.labels, field)), []).append(curve)
    _check_same_numbers(keys, measure)
    others = [name for name in sweep.vary if name != field]
    labels_of = [[value.label for value in sweep.vary[name]] for name in others]
    return Results(
        measure=_words(keys[finished[0].name], measure),
        field=field,
        values=[value.label for value in sweep.vary[field]] if field else [""],
        settings=[_setting(dict(zip(others, labels, strict=True)), field) for labels in itertools.product(*labels_of)],
        curves=curves,
        unfinished=[cell.name for cell in cells if cell.name not in keys],
    )


def read_curve(folder: Path, measure: str) -> tuple[list[str], Curve]:
    """Returns the names of the measure's numbers, one for each set, and a run's curve of their mean.

    Raises LabError if the run does not have the number, or a value is not finite.
    """
    known: list[str] = []
    for path in (folder / EVALUATIONS, folder / METRICS):
        rows = read_rows(path)
        last = rows[-1] if rows else {}
        keys = [measure] if measure in last else [key for key in last if key.partition("/")[2] == measure]
        if keys:
            return keys, [(row["update"], _mean(path, row, keys)) for row in rows if keys[0] in row]
        known += [key for key in last if key != "update" and not key.endswith(("/low", "/high"))]
    raise LabError(f"{folder} has no number {measure!r}: choose from {', '.join(known)}")


def read_rows(path: Path) -> list[Row]:
    """Returns the complete rows of a file of metrics, which need not exist. Raises LabError if a line is not a row."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    try:
        rows = [json.loads(line) for line in lines]
        return [{**row, "update": float(row["update"])} for row in rows]
    except (ValueError, LookupError, TypeError) as error:
        raise LabError(f"{path} has a line that is not a row of metrics: restore the file") from error


def area(curve: Curve) -> float:
    """Returns the mean height of a curve by the trapezoidal rule; for a single point, its value."""
    width = curve[-1][0] - curve[0][0]
    if width <= 0:
        return curve[-1][1]
    steps = itertools.pairwise(curve)
    return math.fsum((after[0] - before[0]) * (before[1] + after[1]) / 2 for before, after in steps) / width


def _default(folder: Path) -> str:
    rows = read_rows(folder / EVALUATIONS)
    return _GREEDY if any(key.endswith(f"/{_GREEDY}") for key in (rows[-1] if rows else {})) else _REWARD


def _mean(path: Path, row: Row, keys: Sequence[str]) -> float:
    values = [row.get(key, math.nan) for key in keys]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        raise LabError(
            f"{path} has {dict(zip(keys, values, strict=True))} at update {row['update']:.0f}, which is not finite: "
            "choose another --measure"
        )
    return math.fsum(values) / len(values)


def _check_same_numbers(keys: Mapping[str, Sequence[str]], measure: str) -> None:
    """Raises LabError if runs have the measure of different sets, whose means say nothing about the runs."""
    (first, expected), *others = keys.items()
    for name, found in others:
        if set(found) != set(expected):
            raise LabError(
                f"{measure} is the mean over {' and '.join(expected)} in the run {first}, and over "
                f"{' and '.join(found)} in the run {name}: choose as --measure one of them that all runs have"
            )


def _words(keys: Sequence[str], measure: str) -> str:
    sets = [key.removesuffix(f"/{measure}") for key in keys]
    return measure if keys == [measure] else f"{measure} of {', '.join(sets)}"


def _setting(labels: Mapping[str, str], field: str) -> str:
    return ", ".join(f"{name}={label}" for name, label in labels.items() if name != field)
