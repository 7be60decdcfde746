"""Question f: is the mixture of experts the cause? A dense model of the same active size, and routing replay."""

from collections.abc import Mapping, Sequence

from examples.study.comparisons import (
    COLUMNS,
    NO,
    NOT_DECIDED,
    NOT_RUN,
    YES,
    Comparison,
    collapses,
    compare_values,
    corrected,
    count_collapses,
)
from examples.study.data import DENSE_SUMS, REPLAY, STALE_UPDATES, Cell, Result, Study, finals
from examples.study.text import Section, escape, table

TITLE = "f. Mixture of experts against a dense model of the same active size; routing replay"
OBJECTIVES = ("GRPO", "SAPO", "AtanLog", "AtanLog one-sided")
_TWO_SIDED = ("SAPO", "AtanLog")


def section(study: Study) -> Section:
    """Returns final on the dense model and with replay minus final on the mixture, and the rates of collapse."""
    mixture = study.cell(STALE_UPDATES)
    planned = [(label, name) for label in OBJECTIVES for name in variants(study)]
    found = corrected([_compare(study, label, name) for label, name in planned])
    rows, answers = [], {label: [] for label in _TWO_SIDED}
    for (label, name), one in zip(planned, found, strict=True):
        base, changed = study.runs(label, mixture), study.runs(label, variants(study)[name])
        rows.append([label, name, collapses(base), collapses(changed), *one.columns()])
        if label in _TWO_SIDED:
            answers[label].append(cause(one, base, changed))
    return Section(
        title=TITLE,
        verdict="the mixture is the cause: "
        + ", ".join(f"{_joined(answer)} ({label})" for label, answer in answers.items()),
        body=[
            f"Measure: final of the variant (A) minus final on the mixture (B), {escape(str(mixture))}. Holm's "
            "correction is over all comparisons of the table. The answer is of the two-sided objectives; the others "
            "are for comparison.",
            table(["objective", "variant", "collapse on the mixture", "collapse of the variant", *COLUMNS], rows),
            table(
                ["objective", *variants(study)],
                [[label, *answer] for label, answer in answers.items()],
            ),
        ],
    )


def variants(study: Study) -> dict[str, Cell]:
    """Returns the cells that are compared with the mixture."""
    return {
        "dense model": study.cell(STALE_UPDATES, recipe=DENSE_SUMS),
        "routing replay": study.cell(STALE_UPDATES, variant=REPLAY),
    }


def cause(one: Comparison, base: Mapping[int, Result], changed: Mapping[int, Result]) -> str:
    """Returns whether the rate of collapse falls by at least half and the variant's final is better, decided."""
    if one.difference is None:
        return NOT_RUN
    if not one.complete:
        return NOT_DECIDED
    rates = [count_collapses(runs) / len(runs) for runs in (base, changed)]
    return YES if rates[0] > 0 and rates[1] <= rates[0] / 2 and one.sign == 1 else NO


def _compare(study: Study, label: str, name: str) -> Comparison:
    runs = [study.runs(label, cell) for cell in (variants(study)[name], study.cell(STALE_UPDATES))]
    return compare_values(f"{label}, {name}", label, finals(runs[0]), finals(runs[1]), name, "final")


def _joined(answers: Sequence[str]) -> str:
    return next((word for word in (YES, NOT_RUN, NOT_DECIDED, NO) if word in answers), NOT_RUN)
