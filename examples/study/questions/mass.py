"""Observation b.2: does the gate lose tokens that moved against their advantage before pass@1 falls?"""

from collections.abc import Sequence
from dataclasses import dataclass

from examples.study.comparisons import AGAINST, FOR, NOT_DECIDED, NOT_RUN
from examples.study.data import STALE_UPDATES, Cell, Curve, Result, Study
from examples.study.forms import CORE_GATES, Forms
from examples.study.questions.observations import joined
from examples.study.statistics import FEWEST_SEEDS
from examples.study.text import Section, number, table

_SHARE = 0.01  # of all tokens
_NEEDED = 6  # seeds of eight
_LOST = ("below_half_positive_below", "below_half_negative_above")  # w < ½, and moved against the advantage


@dataclass(frozen=True, kw_only=True)
class Order:
    """Updates at which something happens in a two-sided run; None if it does not happen.

    Attributes:
        rise: the update at which lost tokens first exceed 1 % of all tokens.
        fall: the update at which pass@1 is first below its start.
        lost: the lost share, at the rise, of the tokens that moved against their advantage.
        lost_one_sided: the same at the same update of the seed's one-sided run.
    """

    rise: float | None
    fall: float | None
    lost: float | None
    lost_one_sided: float | None


def observe(study: Study) -> Section:
    """Returns for each core gate how often the rise comes before the fall."""
    rows, verdicts = [], []
    for gate in CORE_GATES:
        for factor in (1, 3):
            cell = study.cell(STALE_UPDATES, factor)
            found = orders(study, gate, cell)
            verdicts.append(verdict(found))
            rises, falls = ([one for one in found if getattr(one, name) is not None] for name in ("rise", "fall"))
            rows.append(
                [
                    gate.name,
                    str(cell),
                    str(len(found)),
                    str(len(rises)),
                    str(len(falls)),
                    str(sum(map(comes_first, found))),
                    _mean([one.lost for one in found]),
                    _mean([one.lost_one_sided for one in found]),
                    verdicts[-1],
                ]
            )
    header = ["gate, two-sided", "cell", "seeds", "with a rise", "with a fall", "rise before fall"]
    header += ["lost share at the rise", "one-sided, same update", "verdict"]
    return Section(
        title="2. Mass",
        verdict=joined(verdicts),
        body=[
            "Rise: the first update at which tokens that moved against their advantage and have w < ½ are over 1 % of "
            "all tokens. Fall: the first evaluation with pass@1 below that before the first update. Lost share: of the "
            "tokens that moved against their advantage, those with w < ½. The prediction is a rise before the fall in "
            f"{_NEEDED} of {FEWEST_SEEDS} seeds; where fewer than {_NEEDED} runs have a fall, it cannot be tested: not "
            "decided. SAPO's w is ½ where ρ = 1 and Â > 0, so each of its tokens with Â > 0 that moved against its "
            "advantage has w < ½: SAPO's rows say little.",
            table(header, rows),
        ],
    )


def orders(study: Study, gate: Forms, cell: Cell) -> list[Order]:
    """Returns the order of rise and fall in each two-sided run that has metrics and evaluations."""
    one_sided = study.runs(gate.one_sided, cell)
    return [
        _order(study, run, one_sided.get(seed))
        for seed, run in study.runs(gate.two_sided, cell).items()
        if study.curve(run) and lost_of_all(study, run)
    ]


def comes_first(order: Order) -> bool:
    """Returns whether the rise comes before the fall, which needs both."""
    return order.rise is not None and order.fall is not None and order.rise < order.fall


def verdict(found: Sequence[Order]) -> str:
    """Returns whether the order of rise and fall is as predicted."""
    if not found:
        return NOT_RUN
    falls = sum(one.fall is not None for one in found)
    if len(found) < FEWEST_SEEDS or falls < _NEEDED:
        return NOT_DECIDED
    return FOR if sum(map(comes_first, found)) >= _NEEDED * len(found) / FEWEST_SEEDS else AGAINST


def lost_of_all(study: Study, run: Result) -> Curve:
    """Returns the share of all tokens that moved against their advantage and have w < ½, by update."""
    positive, negative = (dict(study.curve(run, name)) for name in _LOST)
    return [(update, positive[update] + negative[update]) for update in positive if update in negative]


def lost_of_moved(study: Study, run: Result) -> Curve:
    """Returns the lost share of the tokens that moved against their advantage, without updates that have none."""
    moved = dict(study.curve(run, "against"))
    return [(update, lost / moved[update]) for update, lost in lost_of_all(study, run) if moved.get(update)]


def _order(study: Study, run: Result, one_sided: Result | None) -> Order:
    rise = next((update for update, share in lost_of_all(study, run) if share > _SHARE), None)
    fall = next((update for update, value in study.curve(run) if value < run.first), None)
    if rise is None:
        return Order(rise=None, fall=fall, lost=None, lost_one_sided=None)
    return Order(
        rise=rise,
        fall=fall,
        lost=dict(lost_of_moved(study, run)).get(rise),
        lost_one_sided=dict(lost_of_moved(study, one_sided)).get(rise) if one_sided else None,
    )


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known)) if known else "–"
