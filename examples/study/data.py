"""The collected results of the study's runs, as `collect.py` and `mechanism.py` write them, by cell and seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from examples.study.collect import METRICS, read_rows
from examples.study.rates import best

SUMS = "sums"  # recipes; those below are of the questions e, f and i
LONG_SUMS, DENSE_SUMS, PRETRAINED_SUMS = "long_sums", "dense_sums", "pretrained_sums"
PRETRAINED_SUMS_ON_GPU = "pretrained_sums_on_gpu"
SEARCH, MAP = "search", "map"  # what the names of their sweeps begin with
REPLAY, BY_ESS, BY_KL = (
    "replay",
    "rate by ESS",
    "rate by KL",
)  # and those of sweeps that change more than their cells say
VARIANTS = {REPLAY: "routing replay", BY_ESS: "rate by ESS", BY_KL: "rate by KL"}
STALE_UPDATES = 8  # μ of the staleness cells
FILES = ("runs.csv", "evaluations.csv", "metrics.csv.gz", "cosines.csv")

COLLAPSES, LEARNS, STALLS = "collapses", "learns", "stalls"
_LEARNED = 0.10  # at least so much above the run's own start
_SAME_RATE = 0.01  # relative: the files have three digits

Curve = Sequence[tuple[float, float]]  # (update, value)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run: its cell, and its held-out pass@1 before the first update, after the last one, and on average."""

    run: str
    sweep: str
    recipe: str
    objective: str
    mu: int
    lr: float
    seed: int
    first: float
    final: float
    area: float

    @property
    def kind(self) -> str:
        """The class of the run: collapses below half of its start, learns from 0.10 above it on, or stalls."""
        if self.final < self.first / 2:
            return COLLAPSES
        return LEARNS if self.final >= self.first + _LEARNED else STALLS


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The place of runs that differ in the objective and the seed only.

    Attributes:
        mu: updates per sync.
        lr: the learning rate; None if it is not known, so that the cell has no runs.
        variant: what its sweeps change beside it, a key of `VARIANTS`; "" if nothing.
        rate_name: the learning rate in words.
    """

    mu: int
    lr: float | None
    recipe: str = SUMS
    variant: str = ""
    rate_name: str = "lr*"

    def __str__(self) -> str:
        known = "" if self.lr is None else f" = {self.lr:.3g}"
        return f"μ = {self.mu}, {self.rate_name}{known}{f', {VARIANTS[self.variant]}' if self.variant else ''}"


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """The cosine of one objective's gradient, k updates stale, with the on-policy gradient at one checkpoint."""

    run: str
    cycle: int
    stale: int
    objective: str
    cosine: float


@dataclass(frozen=True, kw_only=True)
class Study:
    """All results; a missing file gives an empty collection.

    Attributes:
        results: one value a run.
        evaluations: run -> (update, pass@1).
        metrics: run -> the numbers of each update, with "update".
        cosines: of the measurement of gradients.
        missing: the names of the files that are not there or have no rows.
    """

    results: Sequence[Result]
    evaluations: Mapping[str, Curve]
    metrics: Mapping[str, Sequence[Mapping[str, float]]]
    cosines: Sequence[Cosine]
    missing: Sequence[str]

    def runs(self, objective: str, cell: Cell) -> dict[int, Result]:
        """Returns the runs of an objective in a cell by seed, in the order of the seeds."""
        found = [
            result
            for result in self.results
            if result.objective == objective
            and (result.recipe, result.mu) == (cell.recipe, cell.mu)
            and _variant(result.sweep) == cell.variant
            and cell.lr is not None
            and same_rate(result.lr, cell.lr)
        ]
        # The search and the map may share a cell, so a seed can have two runs of it: only one of them counts.
        return {result.seed: result for result in sorted(found, key=lambda result: (result.seed, result.run))}

    def cell(self, mu: int, factor: float = 1, *, recipe: str = SUMS, variant: str = "") -> Cell:
        """Returns the cell at a multiple of the recipe's lr*."""
        names = {1 / 3: "lr*/3", 1: "lr*", 3: "3 lr*", 10: "10 lr*"}
        base = self.base_rates.get(recipe)
        lr = None if base is None else base * factor
        return Cell(mu=mu, lr=lr, recipe=recipe, variant=variant, rate_name=names[factor])

    @cached_property
    def base_rates(self) -> dict[str, float]:
        """lr* by recipe: the choice of its search, or without a search the smallest rate of its runs beside the map."""
        chosen: dict[str, float] = {}
        for recipe in dict.fromkeys(result.recipe for result in self.results):
            areas = self.areas_by_rate(recipe)
            others = [one.lr for one in self.results if one.recipe == recipe and not one.sweep.startswith(MAP)]
            if areas:
                chosen[recipe] = best(areas)
            elif others:
                chosen[recipe] = min(others)
        return chosen

    def areas_by_rate(self, recipe: str) -> dict[float, list[float]]:
        """Returns the areas of a recipe's search by learning rate, in ascending order."""
        found: dict[float, list[float]] = {}
        for one in sorted(self.results, key=lambda one: (one.lr, one.seed)):
            if one.recipe == recipe and one.sweep.startswith(SEARCH):
                found.setdefault(one.lr, []).append(one.area)
        return found

    def curve(self, result: Result, metric: str = "") -> Curve:
        """Returns a run's (update, value) of a metric, or of held-out pass@1; empty if it was not collected."""
        if not metric:
            return self.evaluations.get(result.run, ())
        rows = self.metrics.get(result.run, ())
        return [(row["update"], row[metric]) for row in rows if math.isfinite(row.get(metric, math.nan))]


def read_study(folder: Path) -> Study:
    """Reads the four files of a folder; those that are missing are named in the study."""
    rows = {name: read_rows(folder / name) for name in FILES}
    evaluations: dict[str, list[tuple[float, float]]] = {}
    for row in rows["evaluations.csv"]:
        evaluations.setdefault(row["run"], []).append((float(row["update"]), float(row["pass@1"])))
    metrics: dict[str, list[dict[str, float]]] = {}
    for row in rows["metrics.csv.gz"]:
        numbers = {name: float(row[name]) for name in ("update", *METRICS) if row.get(name)}
        metrics.setdefault(row["run"], []).append(numbers)
    return Study(
        results=[_result(row) for row in rows["runs.csv"]],
        evaluations=evaluations,
        metrics=metrics,
        cosines=[
            Cosine(
                run=row["run"],
                cycle=int(row["cycle"]),
                stale=int(row["stale"]),
                objective=row["objective"],
                cosine=float(row["cosine"]),
            )
            for row in rows["cosines.csv"]
        ],
        missing=[name for name in FILES if not rows[name]],
    )


def same_rate(first: float, second: float) -> bool:
    """Returns whether two learning rates are the same up to the rounding of the files."""
    return math.isclose(first, second, rel_tol=_SAME_RATE)


def finals(runs: Mapping[int, Result]) -> dict[int, float]:
    """Returns pass@1 after the last update by seed."""
    return {seed: run.final for seed, run in runs.items()}


def areas(runs: Mapping[int, Result]) -> dict[int, float]:
    """Returns the area under pass@1 by seed."""
    return {seed: run.area for seed, run in runs.items()}


def _variant(sweep: str) -> str:
    return next((name for name in VARIANTS if sweep.startswith(name)), "")


def _result(row: Mapping[str, str]) -> Result:
    return Result(
        run=row["run"],
        sweep=row["sweep"],
        recipe=row["recipe"],
        objective=row["objective"],
        mu=int(row["mu"]),
        lr=float(row["lr"]),
        seed=int(row["seed"]),
        first=float(row["first"]),
        final=float(row["final"]),
        area=float(row["area"]),
    )
