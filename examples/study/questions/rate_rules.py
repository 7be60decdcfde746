"""Question j: does a learning rate that follows the staleness let objectives hold where the rate is too large?"""

from collections.abc import Mapping, Sequence

from examples.study.comparisons import (
    COLUMNS,
    MIXED,
    NO,
    NOT_DECIDED,
    NOT_RUN,
    YES,
    Comparison,
    collapses,
    compare_values,
    corrected,
)
from examples.study.data import BY_ESS, BY_KL, STALE_UPDATES, VARIANTS, Cell, Study, areas, finals
from examples.study.grid import RULED
from examples.study.statistics import FEWEST_SEEDS, mean, t_interval
from examples.study.text import Section, interval, table

TITLE = "j. Does a learning rate that follows the staleness let objectives hold at 3 lr*, at no cost at lr*?"
RULES = (BY_ESS, BY_KL)
FACTORS = (3, 1)
DESCRIBED = ((16, 3), (8, 10))  # (μ, multiple of lr*)
_AGAINST = ("difference (95 % of t)", "seeds", "as good")
_LEVEL = 0.05
_MARGIN = 0.05  # of final, by which a rule may be below the chosen rate
_NEEDED, _FEW = 4, 2  # of the six objectives


def section(study: Study) -> Section:
    """Returns each rule against no rule in both cells, against lr*/3, and what was described."""
    found = comparisons(study)
    answers = {
        rule: {label: helps([one for one in found if (one.first, one.second) == (rule, label)]) for label in RULED}
        for rule in RULES
    }
    cells = [study.cell(STALE_UPDATES, factor, variant=rule) for rule in ("", *RULES) for factor in FACTORS]
    cells += [study.cell(mu, factor, variant=rule) for mu, factor in DESCRIBED for rule in ("", *RULES)]
    runs = [_row(study, label, cell) for cell in cells for label in RULED if study.runs(label, cell)]
    chosen = [
        [VARIANTS[rule], label, _mean_rate(study, rule, label), *_against(study, rule, label, 1), *chosen_rate]
        for rule in RULES
        for label in RULED
        for chosen_rate in [_against(study, rule, label, 1 / 3)]
    ]
    return Section(
        title=TITLE,
        verdict="; ".join(f"{VARIANTS[rule]}: {general(of_rule)}" for rule, of_rule in answers.items()),
        body=[
            "Final with a rule (A) minus final without (B), of the same objective, rate and seeds. Holm's correction "
            f"is over all {len(found)} comparisons. What decides is the t-test, by the question's own rule; the "
            "verdict of the last column is that of the percentile p-value.",
            table(
                ["rule", "objective", "cell", *COLUMNS],
                [[VARIANTS[one.first], one.second, one.where, *one.columns()] for one in found],
            ),
            table(
                ["objective", *(f"{VARIANTS[rule]} helps" for rule in RULES)],
                [[label, *(answers[rule][label] for rule in RULES)] for label in RULED],
            ),
            "The mean learning rate with a rule at 3 lr\\*, and final with it minus final at a constant lr\\* and at "
            f"lr\\*/3, with Student's 95 % interval: as good as the constant rate if the interval is above −{_MARGIN}. "
            "The registered comparison is the last.",
            table(
                [
                    "rule",
                    "objective",
                    "mean rate",
                    *(f"{what}: {column}" for what in ("lr*", "lr*/3") for column in _AGAINST),
                ],
                chosen,
            ),
            "Means over the seeds with 95 % intervals.",
            table(["objective", "cell", "seeds", "final", "area", "collapse"], runs),
        ],
    )


def comparisons(study: Study) -> list[Comparison]:
    """Returns the comparisons of each rule with no rule, by objective and cell, corrected over all of them."""
    found = []
    for rule in RULES:
        for label in RULED:
            for factor in FACTORS:
                without = study.cell(STALE_UPDATES, factor)
                ruled = finals(study.runs(label, study.cell(STALE_UPDATES, factor, variant=rule)))
                others = finals(study.runs(label, without))
                found.append(compare_values(rule, label, ruled, others, str(without), "final"))
    return corrected(found)


def helps(found: Sequence[Comparison]) -> str:
    """Returns whether a rule helps an objective: better at 3 lr* and not worse at lr*, by the t-test."""
    large, own = (sign(one) for one in found)
    if not any(one.difference for one in found):
        return NOT_RUN
    if not all(one.complete for one in found):
        return NOT_DECIDED
    return YES if large > 0 and own >= 0 else NO


def sign(one: Comparison) -> int:
    """Returns the sign of a difference that the t-test decides, else 0."""
    if one.difference is None or one.adjusted_t is None or one.adjusted_t >= _LEVEL:
        return 0
    return 1 if one.difference.estimate.mean > 0 else -1


def general(answers: Mapping[str, str]) -> str:
    """Returns the answer for one rule, with the number of objectives that it helps."""
    helped = sum(answer == YES for answer in answers.values())
    still_open = sum(answer in (NOT_RUN, NOT_DECIDED) for answer in answers.values())
    counts = f"helps {helped} of {len(answers)} objectives" + (f", {still_open} are open" if still_open else "")
    if helped >= _NEEDED:
        return f"{YES} ({counts})"
    if still_open:
        return f"{NOT_DECIDED} ({counts})"
    return f"{NO if helped < _FEW else MIXED} ({counts})"


def _against(study: Study, rule: str, label: str, factor: float) -> list[str]:
    ruled = finals(study.runs(label, study.cell(STALE_UPDATES, 3, variant=rule)))
    constant = finals(study.runs(label, study.cell(STALE_UPDATES, factor)))
    seeds = sorted(ruled.keys() & constant.keys())
    if len(seeds) < 2:
        return ["–", str(len(seeds)), NOT_RUN]
    found = t_interval([ruled[seed] - constant[seed] for seed in seeds])
    assert found.low is not None and found.high is not None
    answer = YES if found.low > -_MARGIN else NO if found.high < -_MARGIN else NOT_DECIDED
    answer = answer if len(seeds) >= FEWEST_SEEDS else NOT_DECIDED
    return [interval(found, signed=True), str(len(seeds)), answer]


def _mean_rate(study: Study, rule: str, label: str) -> str:
    """Returns the mean over updates and seeds, as a multiple of lr*."""
    runs = study.runs(label, study.cell(STALE_UPDATES, 3, variant=rule)).values()
    rates = [rate for run in runs for _, rate in study.curve(run, "learning_rate")]
    lr = study.cell(STALE_UPDATES).lr
    return f"{sum(rates) / len(rates) / lr:.2f} lr*" if rates and lr else "–"


def _row(study: Study, label: str, cell: Cell) -> list[str]:
    runs = study.runs(label, cell)
    means = [interval(mean(list(of(runs).values()))) for of in (finals, areas)]
    return [label, str(cell), str(len(runs)), *means, collapses(runs)]
