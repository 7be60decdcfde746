"""Question a: do two-sided gates collapse under staleness where one-sided ones hold?"""

from collections.abc import Sequence

from examples.study.comparisons import COLUMNS, MIXED, NO, NOT_DECIDED, NOT_RUN, YES, Comparison, collapses, compare
from examples.study.comparisons import corrected as holm_corrected
from examples.study.data import STALE_UPDATES, Study
from examples.study.forms import GATES, HARD, SOFT, Forms
from examples.study.text import Section, table

TITLE = "a. Do two-sided gates collapse under staleness where one-sided ones hold?"
_SOFT_NEEDED, _HARD_NEEDED = 6, 2


def section(study: Study) -> Section:
    """Returns the comparison of each gate's two forms in each staleness cell, and the answer by gate."""
    found = comparisons(study)
    rows = []
    for gate in GATES:
        for factor, one in found[gate]:
            cell = study.cell(STALE_UPDATES, factor)
            rates = [collapses(study.runs(label, cell)) for label in (gate.two_sided, gate.one_sided)]
            rows.append([gate.name, one.where, *rates, *one.columns()])
    answers = {gate: verdict([one for _, one in found[gate]]) for gate in GATES}
    header = ["gate", "cell", "collapse, two-sided", "collapse, one-sided", *COLUMNS]
    return Section(
        title=TITLE,
        verdict=general(answers),
        body=[
            "Measure: final of the one-sided form (A) minus final of the two-sided form (B). Holm's correction is over "
            "all comparisons of the table. Rates of collapse have Wilson intervals.",
            table(header, rows),
            table(
                ["gate", "kind", "verdict"],
                [[gate.name, "hard" if gate in HARD else "soft", answer] for gate, answer in answers.items()],
            ),
        ],
    )


def comparisons(study: Study) -> dict[Forms, list[tuple[float, Comparison]]]:
    """Returns (multiple of lr*, comparison) of each gate's cells, corrected over all of them."""
    planned = [(gate, factor) for gate in GATES for factor in ((1, 3) if gate.core else (1,))]
    corrected = holm_corrected(
        [compare(study, gate.one_sided, gate.two_sided, study.cell(STALE_UPDATES, factor)) for gate, factor in planned]
    )
    found: dict[Forms, list[tuple[float, Comparison]]] = {}
    for (gate, factor), one in zip(planned, corrected, strict=True):
        found.setdefault(gate, []).append((factor, one))
    return found


def verdict(cells: Sequence[Comparison]) -> str:
    """Returns the answer for one gate; "not decided" while one of its cells lacks seeds."""
    if not any(one.difference for one in cells):
        return NOT_RUN
    if not all(one.complete for one in cells):
        return NOT_DECIDED
    signs = [one.sign for one in cells]
    return YES if 1 in signs and -1 not in signs else NO


def general(answers: dict[Forms, str]) -> str:
    """Returns the general answer, as far as gates that are still open cannot change it."""
    soft, hard = (sum(answers[gate] == YES for gate in kind) for kind in (SOFT, HARD))
    still_open = sum(answer in (NOT_RUN, NOT_DECIDED) for answer in answers.values())
    counts = f"yes for {soft} of {len(SOFT)} soft and {hard} of {len(HARD)} hard gates"
    if soft >= _SOFT_NEEDED and hard >= _HARD_NEEDED:
        return f"{YES} ({counts})"
    if 2 * (soft + hard + still_open) < len(answers):
        return f"{NO} ({counts})"
    if not still_open:
        return f"{MIXED} ({counts})"
    return f"{NOT_RUN} ({counts}; {still_open} gates are open)"
