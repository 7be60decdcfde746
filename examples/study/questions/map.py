"""Question g: a map of where each objective learns, stalls and collapses."""

from examples.study.comparisons import NOT_RUN
from examples.study.data import COLLAPSES, LEARNS, STALLS, Result, Study
from examples.study.grid import CORE, NO_GATE
from examples.study.text import Section, escape, number, table

TITLE = "g. A map of where each objective learns, stalls and collapses"
OBJECTIVES = (*NO_GATE, *CORE)
UPDATES_PER_SYNC = (1, 2, 4, 8, 16)
FACTORS = {1 / 3: "lr*/3", 1: "lr*", 3: "3 lr*"}
LETTERS = {LEARNS: "L", STALLS: "S", COLLAPSES: "C"}
ON_POLICY = "AtanLog"  # at μ = 1 it stands for all objectives, which have one gradient there
_SEEDS = (0, 1)


def section(study: Study) -> Section:
    """Returns final and the class of both runs of each cell."""
    rows = [
        [
            objective,
            *(" · ".join(_text(runs(study, objective, mu, factor)) for factor in FACTORS) for mu in UPDATES_PER_SYNC),
        ]
        for objective in OBJECTIVES
    ]
    complete = sum(bool(runs(study, *place)) for place in cells())
    return Section(
        title=TITLE,
        verdict="described"
        if complete == len(cells())
        else f"{NOT_RUN} in {len(cells()) - complete} of {len(cells())} cells",
        body=[
            f"Mean final of seeds 0 and 1 at {escape(', '.join(FACTORS.values()))}, and the class of each of the two "
            f"runs: {', '.join(f'{letter} {kind}' for kind, letter in LETTERS.items())}. At μ = 1 the runs "
            f"of {ON_POLICY} stand for all objectives, which have the same gradient there.",
            table(["objective", *(f"μ = {mu}" for mu in UPDATES_PER_SYNC)], rows),
        ],
    )


def cells() -> list[tuple[str, int, float]]:
    """Returns (objective, μ, multiple of lr*) of all cells."""
    return [(label, mu, factor) for label in OBJECTIVES for mu in UPDATES_PER_SYNC for factor in FACTORS]


def runs(study: Study, objective: str, mu: int, factor: float) -> list[Result]:
    """Returns the runs of a cell with the seeds of the map."""
    found = study.runs(ON_POLICY if mu == 1 else objective, study.cell(mu, factor))
    return [found[seed] for seed in _SEEDS if seed in found]


def _text(found: list[Result]) -> str:
    if not found:
        return NOT_RUN
    mean = sum(one.final for one in found) / len(found)
    return f"{number(mean)} {''.join(LETTERS[one.kind] for one in found)}"
