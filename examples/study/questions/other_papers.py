"""Question h: do the objectives of other papers hold under staleness, and is one of them better than the core's?"""

from collections.abc import Sequence

from examples.study.comparisons import (
    COLUMNS,
    MIXED,
    NO,
    NOT_DECIDED,
    NOT_RUN,
    YES,
    Comparison,
    collapses,
    compare,
    compare_values,
    corrected,
)
from examples.study.data import STALE_UPDATES, Cell, Study, finals
from examples.study.grid import OTHER_PAPERS
from examples.study.screening import chosen
from examples.study.text import Section, interval, number, table

TITLE = "h. Do the objectives of other papers hold under staleness, and is one of them better than those of the core?"
REFERENCES = ("GRPO", "AtanLog one-sided")
_SCREENED_SEEDS = (0, 1)


def section(study: Study) -> Section:
    """Returns the screening, and the comparison of the six with both references in each cell."""
    staleness = [study.cell(STALE_UPDATES, factor) for factor in (1, 3)]
    screened = []
    for label in OTHER_PAPERS:
        runs = [study.runs(label, cell) for cell in staleness]
        values = [[found[seed].final for seed in _SCREENED_SEEDS if seed in found] for found in runs]
        screened.append([label, *(" ".join(map(number, found)) or NOT_RUN for found in values)])
    body = [
        "Screening, final of seeds 0 and 1:",
        table(["objective", *map(str, staleness)], screened),
    ]
    six = chosen(study)
    if not six:
        return Section(title=TITLE, verdict=f"{NOT_RUN}: the screening is not complete", body=body)
    found = comparisons(study, six)
    rows = [
        [
            one.first,
            one.second,
            one.where,
            collapses(study.runs(one.first, cell)),
            *one.columns(),
            _unseen(study, one, cell),
        ]
        for one, cell in found
    ]
    answers = [
        [
            label,
            *(better([one for one, _ in found if (one.first, one.second) == (label, other)]) for other in REFERENCES),
        ]
        for label in six
    ]
    body += [
        "Measure: final of the objective (A) minus final of the reference (B). Holm's correction is over all "
        f"{len(found)} comparisons. The last column has the difference over seeds that the screening has not seen.",
        table(["objective", "reference", "cell", "collapse", *COLUMNS, "seeds 2 to 7"], rows),
        table(["objective", *(f"better than {other}" for other in REFERENCES)], answers),
    ]
    verdict = "; ".join(
        f"better than {other}: {_summary([row[place] for row in answers])}" for place, other in enumerate(REFERENCES, 1)
    )
    return Section(title=TITLE, verdict=verdict, body=body)


def comparisons(study: Study, labels: Sequence[str]) -> list[tuple[Comparison, Cell]]:
    """Returns the comparisons of the chosen objectives with each reference in each cell, corrected over all of them."""
    cells = [study.cell(STALE_UPDATES, 1), study.cell(STALE_UPDATES, 3), study.cell(2), study.cell(4)]
    planned = [(label, other, cell) for label in labels for other in REFERENCES for cell in cells]
    found = corrected([compare(study, label, other, cell) for label, other, cell in planned])
    return [(one, cell) for one, (_, _, cell) in zip(found, planned, strict=True)]


def better(found: Sequence[Comparison]) -> str:
    """Returns whether an objective is better than a reference: decided in at least one cell, worse in none."""
    if not any(one.difference for one in found):
        return NOT_RUN
    if not all(one.complete for one in found):
        return NOT_DECIDED
    signs = {one.sign for one in found}
    if 1 not in signs:
        return NO
    return MIXED if -1 in signs else YES


def _unseen(study: Study, one: Comparison, cell: Cell) -> str:
    """Returns the difference over the seeds that the screening has not seen."""
    a, b = (
        {seed: value for seed, value in finals(study.runs(label, cell)).items() if seed not in _SCREENED_SEEDS}
        for label in (one.first, one.second)
    )
    difference = compare_values(one.first, one.second, a, b, one.where, one.measure).difference
    return "–" if difference is None else interval(difference.estimate, signed=True)


def _summary(answers: Sequence[str]) -> str:
    return f"{sum(answer == YES for answer in answers)} of {len(answers)}"
