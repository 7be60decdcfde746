"""Question c: which direction of τ, and which size, for both forms?"""

import math
from collections.abc import Sequence

from examples.study.comparisons import COLUMNS, DECIDED, NOT_DECIDED, NOT_RUN, Comparison, compare, corrected
from examples.study.data import STALE_UPDATES, Study, finals
from examples.study.statistics import Estimate, mean
from examples.study.text import Section, escape, interval, number, table

TITLE = "c. Which direction of τ, and which size, for both forms?"
FORMS = {"two-sided": "", "one-sided": " one-sided"}
TAUS = ((0.1, 0.1), (0.3, 0.2), (0.2, 0.3), (0.6, 0.5), (0.5, 0.6), (1.0, 1.0))  # (τ_neg, τ_pos)
_DEFAULT = (0.3, 0.2)
_PAIRS = (((0.3, 0.2), (0.2, 0.3)), ((0.6, 0.5), (0.5, 0.6)))  # τ_neg > τ_pos first


def section(study: Study) -> Section:
    """Returns the two comparisons of a form, its answer, and its final by the size of τ."""
    cell = study.cell(STALE_UPDATES)
    found = corrected(
        [compare(study, label(first, form), label(second, form), cell) for form in FORMS for first, second in _PAIRS]
    )
    of_form = {form: found[2 * place : 2 * place + 2] for place, form in enumerate(FORMS)}
    rows = [
        [form, f"{first} − {second}", *one.columns()]
        for form in FORMS
        for (first, second), one in zip(_PAIRS, of_form[form], strict=True)
    ]
    sizes = [
        [form, str(taus), number(math.sqrt(math.prod(taus)), digits=3), interval(value), str(seeds)]
        for form in FORMS
        for taus, value, seeds in final_by_size(study, form)
    ]
    answers = {form: _direction(of_form[form]) for form in FORMS}
    return Section(
        title=TITLE,
        verdict="; ".join(f"{form}: {answer}" for form, answer in answers.items()),
        body=[
            f"Measure: final at {escape(str(cell))}; A has τ_neg > τ_pos. Holm's correction is over the four "
            "comparisons.",
            table(["form", "(τ_neg, τ_pos), A − B", *COLUMNS], rows),
            "Final by the geometric mean of the two temperatures:",
            table(["form", "(τ_neg, τ_pos)", "geometric mean", "final (95 %)", "seeds"], sizes) if sizes else "not run",
        ],
    )


def label(taus: tuple[float, float], form: str) -> str:
    """Returns the label of AtanLog with these temperatures."""
    return f"AtanLog{'' if taus == _DEFAULT else f'({taus[0]}, {taus[1]})'}{FORMS[form]}"


def final_by_size(study: Study, form: str) -> list[tuple[tuple[float, float], Estimate, int]]:
    """Returns (temperatures, final, seeds) by the size of the temperatures, without those that were not run."""
    found = []
    for taus in TAUS:
        runs = study.runs(label(taus, form), study.cell(STALE_UPDATES))
        if runs:
            found.append((taus, mean(list(finals(runs).values())), len(runs)))
    return found


def _direction(pairs: Sequence[Comparison]) -> str:
    if not any(one.difference for one in pairs):
        return NOT_RUN
    if not all(one.complete for one in pairs):
        return f"{NOT_DECIDED}, seeds are missing"
    signs = {one.sign for one in pairs} - {0}
    if len(signs) == 1:
        return f"{DECIDED}, τ_neg {'>' if signs == {1} else '<'} τ_pos is better"
    return f"{NOT_DECIDED}, no difference found"
