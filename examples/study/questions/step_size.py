"""Observation b.4: does a smaller learning rate help the two-sided form as much as the one-sided gate does?"""

from examples.study.comparisons import (
    AGAINST,
    FOR,
    NOT_DECIDED,
    NOT_RUN,
    collapses,
    compare_values,
    count_collapses,
)
from examples.study.data import STALE_UPDATES, Cell, Study, areas
from examples.study.forms import CORE_GATES, Forms
from examples.study.questions.observations import joined
from examples.study.statistics import FEWEST_SEEDS, Estimate, t_interval
from examples.study.text import Section, interval, number, table

_SMALLEST = 1 / 3
_FACTORS = (_SMALLEST, 1, 3)
_MARGIN = 0.03  # of area, in which two forms are as good as one another
MATTERS, DOES_NOT_MATTER, OPEN = "it matters", "it does not matter", "open"


def observe(study: Study) -> Section:
    """Returns the best area over the learning rates of both forms, and the two-sided form at lr*/3."""
    rows, verdicts = [], []
    for gate in CORE_GATES:
        row, verdict = _row(study, gate)
        rows.append([*row, verdict])
        verdicts.append(verdict)
    header = ["gate", "best area, two-sided", "best area, one-sided", "two − one (95 %)", "seeds"]
    header += ["collapse, two-sided at lr*/3", "two at lr*/3 − one (95 %)", "seeds", "verdict"]
    return Section(
        title="4. Alternative",
        verdict=joined(verdicts),
        body=[
            f"Area at μ = {STALE_UPDATES}, at the learning rate of the three with the largest mean area. A gate is "
            "against the mechanism if its two-sided form at lr\\*/3 never collapses, and its area there is as large as "
            "the best of the one-sided form (the mean difference is not negative). Differences are over the seeds of "
            "both cells, without a correction.",
            table(header, rows),
            "Addition: whether the side of the gate matters where the learning rate is chosen. One-sided − two-sided, "
            "each at its own best learning rate, with Student's 95 % interval; it does not matter if the interval is "
            f"within ±{_MARGIN}, and it matters if the interval is above {_MARGIN}.",
            table(["gate", "one − two (95 % of t)", "seeds", "the side"], [_side(study, gate) for gate in CORE_GATES]),
        ],
    )


def best_cell(study: Study, label: str) -> Cell | None:
    """Returns the cell with the largest mean area; None if a learning rate was not run."""
    cells = [study.cell(STALE_UPDATES, factor) for factor in _FACTORS]
    found = [list(areas(study.runs(label, cell)).values()) for cell in cells]
    if not all(found):
        return None
    means = [sum(values) / len(values) for values in found]
    return cells[means.index(max(means))]


def _row(study: Study, gate: Forms) -> tuple[list[str], str]:
    best = [best_cell(study, label) for label in (gate.two_sided, gate.one_sided)]
    two, one = best
    if two is None or one is None:
        return [gate.name, "–", "–", "–", "0", "–", "–", "0"], NOT_RUN
    smallest = study.cell(STALE_UPDATES, _SMALLEST)
    small = study.runs(gate.two_sided, smallest)
    of_two, of_one = areas(study.runs(gate.two_sided, two)), areas(study.runs(gate.one_sided, one))
    texts = []
    for cell, values in ((two, of_two), (one, of_one)):
        texts.append(f"{number(sum(values.values()) / len(values))} at {cell.rate_name}")
    best_difference, small_difference = (
        compare_values(gate.two_sided, gate.one_sided, values, of_one, gate.name, "area").difference
        for values in (of_two, areas(small))
    )
    if best_difference is None or small_difference is None:
        return [gate.name, *texts, "–", "0", collapses(small), "–", "0"], NOT_RUN
    cells = []
    for difference in (best_difference, small_difference):
        cells.append([interval(difference.estimate, signed=True), str(difference.seeds)])
    row = [gate.name, *texts, *cells[0], collapses(small), *cells[1]]
    holds = count_collapses(small) == 0 and small_difference.estimate.mean >= 0
    return row, AGAINST if holds else FOR


def _side(study: Study, gate: Forms) -> list[str]:
    one, two = (best_cell(study, label) for label in (gate.one_sided, gate.two_sided))
    if one is None or two is None:
        return [gate.name, "–", "0", NOT_RUN]
    of_one, of_two = areas(study.runs(gate.one_sided, one)), areas(study.runs(gate.two_sided, two))
    seeds = sorted(of_one.keys() & of_two.keys())
    if not seeds:
        return [gate.name, "–", "0", NOT_RUN]
    found = t_interval([of_one[seed] - of_two[seed] for seed in seeds])
    answer = side_matters(found) if len(seeds) >= FEWEST_SEEDS else NOT_DECIDED
    return [gate.name, interval(found, signed=True, digits=3), str(len(seeds)), answer]


def side_matters(found: Estimate) -> str:
    """Returns what the interval of one-sided − two-sided says of the side of a gate."""
    if found.low is None or found.high is None:
        return OPEN
    if found.low > _MARGIN:
        return MATTERS
    return DOES_NOT_MATTER if found.low > -_MARGIN and found.high < _MARGIN else OPEN
