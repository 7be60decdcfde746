"""Question e: token or sequence weights as responses grow."""

from collections.abc import Sequence

from examples.study.comparisons import COLUMNS, NO, NOT_DECIDED, NOT_RUN, YES, Comparison, compare, corrected
from examples.study.data import LONG_SUMS, STALE_UPDATES, SUMS, Study
from examples.study.text import Section, table

TITLE = "e. Token or sequence weights as responses grow"
TASKS = {SUMS: "sums of two numbers", LONG_SUMS: "longer sums, step by step"}
# (sequence or geometric pooling, token pooling) with the same kind of gate
PAIRS = (("GSPO", "GRPO"), ("GMPO", "GRPO"), ("AtanLog", "SAPO"))


def section(study: Study) -> Section:
    """Returns the difference of each pair on each task, and whether its sign changes."""
    found = comparisons(study)
    rows = [
        [f"{one.first} − {one.second}", task, one.where, *one.columns()]
        for pair in found
        for task, one in zip(TASKS.values(), pair, strict=True)
    ]
    answers = [[f"{pair[0].first} − {pair[0].second}", changes(pair)] for pair in found]
    return Section(
        title=TITLE,
        verdict="the sign changes: " + ", ".join(f"{answer} ({pair})" for pair, answer in answers),
        body=[
            "Measure: final with sequence or geometric pooling (A) minus final with token pooling (B), each task at "
            "its own lr\\*. Holm's correction is over all comparisons of the table.",
            table(["pair", "task", "cell", *COLUMNS], rows),
            table(["pair", "the sign changes"], answers),
        ],
    )


def comparisons(study: Study) -> list[list[Comparison]]:
    """Returns for each pair the comparison on each task, corrected over all of them."""
    found = corrected(
        [
            compare(study, first, second, study.cell(STALE_UPDATES, recipe=task))
            for first, second in PAIRS
            for task in TASKS
        ]
    )
    return [found[place : place + len(TASKS)] for place in range(0, len(found), len(TASKS))]


def changes(pair: Sequence[Comparison]) -> str:
    """Returns whether the two tasks' differences, if both are decided, have different signs."""
    if not all(one.difference for one in pair):
        return NOT_RUN
    if not all(one.decided for one in pair):
        return NOT_DECIDED
    return NO if len({one.sign for one in pair}) == 1 else YES
