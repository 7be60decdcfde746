"""Observation b.1: is the one-sided gate for either sign of Â between the two-sided and the one-sided form?"""

from collections.abc import Sequence

from examples.study.comparisons import AGAINST, COLUMNS, FOR, NOT_DECIDED, NOT_RUN, Comparison, compare, corrected
from examples.study.data import STALE_UPDATES, Study
from examples.study.grid import ONE_SIGN
from examples.study.text import Section, escape, interval, table

_TWO_SIDED, _ONE_SIDED = "AtanLog", "AtanLog one-sided"


def observe(study: Study) -> Section:
    """Returns each form that is one-sided for one sign of Â against the two-sided and against the one-sided form."""
    cell = study.cell(STALE_UPDATES)
    lower = corrected([compare(study, label, _TWO_SIDED, cell) for label in ONE_SIGN])
    upper = [compare(study, _ONE_SIDED, label, cell) for label in ONE_SIGN]
    rows = [
        [one.first, *one.columns(), interval(above.difference.estimate, signed=True) if above.difference else "–"]
        for one, above in zip(lower, upper, strict=True)
    ]
    return Section(
        title="1. Necessary ingredient",
        verdict=_verdict(lower, upper),
        body=[
            f"Measure: final minus final of the two-sided form, {escape(str(cell))}. Holm's correction is over the two "
            "comparisons. The prediction is that both are between the two forms, and that at least one is decided.",
            table(["objective (A)", *COLUMNS, "one-sided − A (95 %)"], rows),
        ],
    )


def _verdict(lower: Sequence[Comparison], upper: Sequence[Comparison]) -> str:
    if not all(one.difference for one in (*lower, *upper)):
        return NOT_RUN
    if not all(one.complete for one in (*lower, *upper)):
        return NOT_DECIDED
    between = all(one.difference and one.difference.estimate.mean >= 0 for one in (*lower, *upper))
    return FOR if between and any(one.decided for one in lower) else AGAINST
