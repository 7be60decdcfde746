"""Question i: do the forms part on a pretrained model, too?"""

from collections.abc import Sequence

from examples.study.comparisons import NO, NOT_DECIDED, NOT_RUN, YES
from examples.study.data import PRETRAINED_SUMS, STALE_UPDATES, Cell, Study, areas, finals
from examples.study.grid import FEW
from examples.study.statistics import paired_difference
from examples.study.text import Section, interval, number, table

TITLE = "i. The same gates on a pretrained model"
OBJECTIVES = tuple(FEW)
FACTORS = (1, 3)  # of the recipe's learning rate
PAIR = ("AtanLog one-sided", "AtanLog")
_SEEDS = 2  # with fewer the answer is not known


def section(study: Study) -> Section:
    """Returns final and area of each run, and the differences of the two forms of AtanLog by seed."""
    found = cells(study)
    runs = [[label, str(cell), *_columns(study, label, cell)] for cell in found for label in OBJECTIVES]
    pairs = [[str(cell), _difference(study, cell)] for cell in found]
    return Section(
        title=TITLE,
        verdict=f"the forms part: {answer(study)}",
        body=[
            "Pass@1 of each run, in the order of the seeds, before the first update and after the last one, and the "
            "mean of area. No learning rate here is the choice of a search, so none is called lr\\*.",
            table(["objective", "cell", "seeds", "start", "final", "area"], runs),
            table(["cell", f"final, {PAIR[0]} − {PAIR[1]}"], pairs),
        ],
    )


def cells(study: Study) -> list[Cell]:
    """Returns the cells at the recipe's learning rate and at three times of it."""
    names = {1: "lr", 3: "3 lr"}
    at = [study.cell(STALE_UPDATES, factor, recipe=PRETRAINED_SUMS) for factor in FACTORS]
    return [
        Cell(mu=cell.mu, lr=cell.lr, recipe=cell.recipe, rate_name=names[factor])
        for factor, cell in zip(FACTORS, at, strict=True)
    ]


def differences(study: Study, cell: Cell) -> list[float]:
    """Returns final of the one-sided form minus final of the two-sided one, by seed."""
    first, second = (finals(study.runs(label, cell)) for label in PAIR)
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def answer(study: Study) -> str:
    """Returns yes, no, not decided or not run, by the rule of docs/study.md."""
    small, large = (differences(study, cell) for cell in cells(study))
    if min(len(small), len(large)) < _SEEDS:
        return NOT_RUN
    if all(at_large > max(0.0, at_small) for at_small, at_large in zip(small, large, strict=True)):
        return YES
    return NO if all(value <= 0 for value in large) else NOT_DECIDED


def _columns(study: Study, label: str, cell: Cell) -> Sequence[str]:
    runs = study.runs(label, cell)
    if not runs:
        return ["0", "–", "–", NOT_RUN]
    mean = sum(areas(runs).values()) / len(runs)
    starts, ends = ([number(getattr(run, name)) for run in runs.values()] for name in ("first", "final"))
    return [str(len(runs)), ", ".join(starts), ", ".join(ends), number(mean)]


def _difference(study: Study, cell: Cell) -> str:
    """Returns the difference of each seed, and their mean."""
    found = differences(study, cell)
    if not found:
        return NOT_RUN
    pair = paired_difference(*(finals(study.runs(label, cell)) for label in PAIR))
    assert pair is not None
    return f"{', '.join(number(value, signed=True) for value in found)}; mean {interval(pair.estimate, signed=True)}"
