"""Question d: in the mild regime, is SSPO better, and does its entropy fall more slowly?"""

from collections.abc import Mapping, Sequence

from examples.study.comparisons import (
    COLUMNS,
    MIXED,
    NO,
    NOT_DECIDED,
    NOT_RUN,
    YES,
    Comparison,
    compare,
    compare_values,
    corrected,
)
from examples.study.data import Cell, Study
from examples.study.text import Section, table

TITLE = "d. The mild regime: is SSPO better there, as the paper says? Does its entropy fall more slowly?"
SSPO = "AtanLog"
OTHERS = ("GRPO", "GSPO", "GMPO", "SAPO")
UPDATES_PER_SYNC = (2, 4)
SKILL = 0.8  # pass@1 at which entropies are compared
_ENTROPY = "entropy at equal skill"


def section(study: Study) -> Section:
    """Returns SSPO against each other objective by final, area and entropy at equal skill in both mild cells."""
    found = comparisons(study)
    answers = {other: better([one for one in found if one.second == other]) for other in OTHERS}
    entropies = [one for one in found if one.measure == _ENTROPY]
    return Section(
        title=TITLE,
        verdict=f"better: {_summary(answers)}; higher entropy at equal skill: {_higher(entropies)}",
        body=[
            f"Measure: {SSPO} (A) minus the other objective (B). Entropy is that of the update at which the run first "
            f"reaches pass@1 {SKILL}, over the seeds in which both do. Holm's correction is over all "
            f"{len(found)} comparisons.",
            table(
                ["other objective", "cell", "measure", *COLUMNS],
                [[one.second, one.where, one.measure, *one.columns()] for one in found],
            ),
            table(["other objective", "SSPO is better"], list(map(list, answers.items()))),
        ],
    )


def comparisons(study: Study) -> list[Comparison]:
    """Returns the comparisons with each other objective, corrected over all of them."""
    found = []
    for other in OTHERS:
        for cell in map(study.cell, UPDATES_PER_SYNC):
            found += [compare(study, SSPO, other, cell, measure=measure) for measure in ("final", "area")]
            ours, theirs = (entropy_at_skill(study, label, cell) for label in (SSPO, other))
            found.append(compare_values(SSPO, other, ours, theirs, str(cell), _ENTROPY))
    return corrected(found)


def entropy_at_skill(study: Study, objective: str, cell: Cell) -> dict[int, float]:
    """Returns the entropy at the first evaluation with pass@1 0.8 by seed, without runs that never reach it."""
    found = {}
    for seed, run in study.runs(objective, cell).items():
        entropy = dict(study.curve(run, "entropy"))
        reached = next((update for update, value in study.curve(run) if value >= SKILL), None)
        if reached is not None:
            # there is no update 0; a run that starts at this skill is compared at its first update
            value = entropy.get(max(reached, 1))
            if value is not None:
                found[seed] = value
    return found


def better(found: Sequence[Comparison]) -> str:
    """Returns whether SSPO is better than one objective: decided in a cell by final or area, not worse in the other."""
    outcomes = [one for one in found if one.measure != _ENTROPY]
    if not any(one.difference for one in outcomes):
        return NOT_RUN
    if not all(one.complete for one in outcomes):
        return NOT_DECIDED
    signs: dict[str, set[int]] = {}
    for one in outcomes:
        signs.setdefault(one.where, set()).add(one.sign)
    improved, worse = ({cell for cell, found in signs.items() if sign in found} for sign in (1, -1))
    if any(not worse - {cell} for cell in improved):
        return YES
    return MIXED if improved else NO


def _summary(answers: Mapping[str, str]) -> str:
    return ", ".join(f"{answer} (against {other})" for other, answer in answers.items())


def _higher(entropies: Sequence[Comparison]) -> str:
    if not any(one.difference for one in entropies):
        return NOT_RUN
    higher, lower = (sum(one.sign == sign for one in entropies) for sign in (1, -1))
    return f"decided in {higher} of {len(entropies)} comparisons, lower in {lower}"
