"""Question i on a GPU: the same cells with eight seeds, and an on-policy control."""

from collections.abc import Sequence

from examples.study.comparisons import (
    COLUMNS,
    NO,
    NOT_DECIDED,
    NOT_RUN,
    YES,
    Comparison,
    collapses,
    compare,
    corrected,
)
from examples.study.data import PRETRAINED_SUMS_ON_GPU, STALE_UPDATES, Cell, Study, areas, finals
from examples.study.grid import FEW, PRETRAINED_RATE
from examples.study.statistics import mean
from examples.study.text import Section, interval, number, table
from megatron_sspo.processes.console import pluralize

TITLE = "i on a GPU. The same cells with eight seeds"
OBJECTIVES = tuple(FEW)
FORMS = ("AtanLog one-sided", "AtanLog")
PAIRS = (FORMS, ("AtanLog one-sided", "GRPO"), ("AtanLog", "GRPO"), ("SAPO", "GRPO"))
ON_POLICY = "AtanLog"  # on-policy every objective here has the same gradient


def section(study: Study) -> Section:
    """Returns final and area of each cell, the differences, and what the same learning rates give on-policy."""
    stale, on_policy = stale_cells(study), on_policy_cells(study)
    found = comparisons(study)
    rows = [[str(cell), *_columns(study, label, cell)] for cell in stale for label in OBJECTIVES]
    rows += [[str(cell), *_columns(study, ON_POLICY, cell)] for cell in on_policy]
    return Section(
        title=TITLE,
        verdict=f"the forms part: {answer(study)}",
        body=[
            "Means over the seeds with 95 % intervals, final of each run in the order of the seeds, and the rate of "
            "collapse. On-policy (μ = 1) all objectives have one gradient.",
            table(["cell", "objective", "start", "final", "by seed", "area", "collapses"], rows),
            "Final of the first minus final of the second; Holm's correction is over all comparisons of the table.",
            table(
                ["pair", "cell", *COLUMNS],
                [[f"{one.first} − {one.second}", one.where, *one.columns()] for one in found],
            ),
        ],
    )


def stale_cells(study: Study) -> list[Cell]:
    """Returns the cells of stale rollouts at the recipe's learning rate and at three times of it."""
    return [_cell(STALE_UPDATES, factor) for factor in (1, 3)]


def on_policy_cells(study: Study) -> list[Cell]:
    """Returns the on-policy cells, at once, three times and ten times the recipe's learning rate."""
    return [_cell(1, factor) for factor in (1, 3, 10)]


def comparisons(study: Study) -> list[Comparison]:
    """Returns the comparison of each pair in each stale cell, corrected over all of them."""
    return corrected([compare(study, *pair, cell) for pair in PAIRS for cell in stale_cells(study)])


def answer(study: Study) -> str:
    """Returns yes, no, not decided or not run, by the rule of docs/study.md; and the seeds at the smaller rate."""
    small, large = (one for one in comparisons(study) if (one.first, one.second) == FORMS)
    if small.difference is None or large.difference is None or not large.complete:
        return NOT_RUN
    word = NO if large.sign == -1 else NOT_DECIDED
    if large.sign == 1 and large.difference.estimate.mean > small.difference.estimate.mean:
        word = YES
    return word if small.complete else f"{word} (with {pluralize(small.difference.seeds, 'seed')} at the smaller rate)"


def _cell(mu: int, factor: int) -> Cell:
    name = "lr" if factor == 1 else f"{factor} lr"
    return Cell(mu=mu, lr=factor * PRETRAINED_RATE, recipe=PRETRAINED_SUMS_ON_GPU, rate_name=name)


def _columns(study: Study, label: str, cell: Cell) -> Sequence[str]:
    runs = study.runs(label, cell)
    if not runs:
        return [label, *["–"] * 4, NOT_RUN]
    ends = list(finals(runs).values())
    start = sum(run.first for run in runs.values()) / len(runs)
    return [
        label,
        number(start),
        interval(mean(ends)),
        ", ".join(map(number, ends)),
        interval(mean(list(areas(runs).values()))),
        collapses(runs),
    ]
