"""Observation b.3: is the one-sided form's gradient closer to the on-policy gradient?"""

from collections.abc import Sequence

from examples.study.comparisons import AGAINST, FOR, NOT_RUN
from examples.study.data import Study
from examples.study.forms import GATES, Forms
from examples.study.questions.observations import joined
from examples.study.statistics import Estimate, nested_mean
from examples.study.text import Section, interval, number, table

CEILING = "ceiling"  # the cosine between two halves of the fresh responses


def observe(study: Study) -> Section:
    """Returns the difference of cosines, one-sided minus two-sided, for each gate and staleness."""
    staleness = stale_updates(study)
    later = [k for k in staleness if k]  # fresh responses have ρ = 1, where all forms have one gradient
    rows, verdicts = [], []
    for gate in GATES:
        estimate = difference(study, gate, later)
        verdicts.append(_verdict(estimate))
        by_k = [_text(difference(study, gate, [k])) for k in later]
        rows.append([gate.name, *by_k, _text(estimate), verdicts[-1]])
    if not staleness:
        return Section(title="3. Direction", verdict=NOT_RUN, body=["There are no rows in `cosines.csv`."])
    seeds = {one.run for one in study.cosines}
    checkpoints = {(one.run, one.cycle) for one in study.cosines}
    ceilings = [[str(k), *map(number, _mean_cosines(study, k))] for k in staleness]
    return Section(
        title="3. Direction",
        verdict=joined(verdicts),
        body=[
            f"Cosine with the on-policy gradient, one-sided minus two-sided, k updates stale: {len(checkpoints)} "
            f"checkpoints of {len(seeds)} runs. Intervals are of bootstrap samples of the runs, and of the checkpoints "
            "within each. A gate is for the mechanism if the interval over all k is above zero.",
            table(["gate", *(f"k = {k}" for k in later), "all k (95 %)", "verdict"], rows),
            table(["k", "split-half ceiling", "mean over two-sided", "mean over one-sided"], ceilings),
        ],
    )


def stale_updates(study: Study) -> list[int]:
    """Returns the measured k in ascending order."""
    return sorted({one.stale for one in study.cosines})


def cosines(study: Study, label: str, k: int) -> dict[tuple[str, int], float]:
    """Returns the cosines of an objective by run and checkpoint."""
    return {(one.run, one.cycle): one.cosine for one in study.cosines if (one.objective, one.stale) == (label, k)}


def difference(study: Study, gate: Forms, staleness: Sequence[int]) -> Estimate | None:
    """Returns the mean difference over runs and checkpoints; None if it was not measured."""
    by_run: dict[str, dict[int, list[float]]] = {}
    for k in staleness:
        one_sided, two_sided = (cosines(study, label, k) for label in (gate.one_sided, gate.two_sided))
        for place in one_sided.keys() & two_sided.keys():
            run, cycle = place
            by_run.setdefault(run, {}).setdefault(cycle, []).append(one_sided[place] - two_sided[place])
    groups = [
        [sum(values) / len(values) for _, values in sorted(cycles.items())] for _, cycles in sorted(by_run.items())
    ]
    return nested_mean(groups) if groups else None


def _verdict(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None:
        return NOT_RUN
    return FOR if estimate.low > 0 else AGAINST


def _text(estimate: Estimate | None) -> str:
    return "–" if estimate is None else interval(estimate, signed=True, digits=3)


def _mean_cosines(study: Study, k: int) -> list[float]:
    """Returns the mean ceiling, and the mean cosine of the two-sided and of the one-sided forms."""
    labels = ([CEILING], [gate.two_sided for gate in GATES], [gate.one_sided for gate in GATES])
    found = [[value for label in group for value in cosines(study, label, k).values()] for group in labels]
    return [sum(values) / len(values) if values else float("nan") for values in found]
