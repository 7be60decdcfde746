"""Comparisons of two objectives in one cell, and what they decide together (docs/study.md, "Measures")."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from examples.study.data import COLLAPSES, Cell, Result, Study, areas, finals
from examples.study.statistics import FEWEST_SEEDS, Difference, holm, paired_difference, wilson
from examples.study.text import interval, number

DECIDED, NOT_DECIDED, NOT_RUN = "decided", "not decided", "not run"
YES, NO, MIXED = "yes", "no", "mixed"
FOR, AGAINST = "for", "against"

_LEVEL = 0.05
MEASURES = {"final": finals, "area": areas}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A − B of one measure.

    Attributes:
        first: the label of A.
        second: the label of B.
        measure: what is compared, in words.
        where: the cell, in words.
        difference: over the seeds that both have; None if there are none.
        adjusted: the p-value after Holm's correction; None if the comparison cannot be decided yet.
        adjusted_t: the same of the paired t-test, which decides nothing (docs/study.md, "Addition: a t-test").
    """

    first: str
    second: str
    measure: str
    where: str
    difference: Difference | None
    adjusted: float | None = None
    adjusted_t: float | None = None

    @property
    def complete(self) -> bool:
        """True if it has the seeds that a decision needs."""
        return self.difference is not None and self.difference.seeds >= FEWEST_SEEDS

    @property
    def decided(self) -> bool:
        return self.adjusted is not None and self.adjusted < _LEVEL

    @property
    def sign(self) -> int:
        """1 if A is better and this is decided, −1 if B is, and 0 if it is not decided."""
        if not self.decided or self.difference is None:
            return 0
        return 1 if self.difference.estimate.mean > 0 else -1

    @property
    def word(self) -> str:
        """The verdict in the words of docs/study.md."""
        if self.difference is None:
            return NOT_RUN
        return DECIDED if self.decided else NOT_DECIDED

    def columns(self) -> list[str]:
        """Returns the cells of `COLUMNS`."""
        if self.difference is None:
            return ["–", "–", "0", "–", "–", NOT_RUN]
        return [
            interval(self.difference.estimate, signed=True),
            f"{self.difference.probability:.2f}",
            str(self.difference.seeds),
            p_value(self.adjusted),
            p_value(self.adjusted_t),
            self.word,
        ]


COLUMNS = ("difference (95 %)", "P(A > B)", "seeds", "p (Holm)", "p of t (Holm)", "verdict")


def compare(study: Study, first: str, second: str, cell: Cell, *, measure: str = "final") -> Comparison:
    """Returns the comparison of two objectives in one cell, not corrected yet."""
    values = MEASURES[measure]
    return compare_values(
        first, second, values(study.runs(first, cell)), values(study.runs(second, cell)), str(cell), measure
    )


def compare_values(
    first: str, second: str, a: Mapping[int, float], b: Mapping[int, float], where: str, measure: str
) -> Comparison:
    """Returns the comparison of values by seed, not corrected yet."""
    return Comparison(
        first=first,
        second=second,
        measure=measure,
        where=where,
        difference=paired_difference(a, b) if a and b else None,
    )


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Adds the p-values after Holm's correction over all comparisons of a question.

    A comparison without eight seeds cannot be decided. It is counted with p = 1, so that the others do not become
    easier to decide because runs are missing.
    """
    known = [one.difference if one.complete else None for one in comparisons]
    adjusted = _holm([found and found.p for found in known])
    adjusted_t = _holm([found and found.p_t for found in known])
    return [
        replace(one, adjusted=p, adjusted_t=p_t) for one, p, p_t in zip(comparisons, adjusted, adjusted_t, strict=True)
    ]


def _holm(values: Sequence[float | None]) -> list[float | None]:
    """Returns the adjusted p-values; None stays None, and counts as 1."""
    adjusted = holm([1.0 if p is None else p for p in values])
    return [None if p is None else found for p, found in zip(values, adjusted, strict=True)]


def collapses(runs: Mapping[int, Result]) -> str:
    """Returns the rate of collapse with its Wilson interval, such as "3/8: 0.38 (0.14 to 0.69)"."""
    if not runs:
        return "–"
    count = count_collapses(runs)
    return f"{count}/{len(runs)}: {interval(wilson(count, len(runs)))}"


def count_collapses(runs: Mapping[int, Result]) -> int:
    """Returns the number of runs that collapse."""
    return sum(run.kind == COLLAPSES for run in runs.values())


def p_value(p: float | None) -> str:
    """Returns a p-value with two digits, or a dash."""
    return "–" if p is None else number(p, digits=4 if p < 0.01 else 2)
