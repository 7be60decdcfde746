"""Prints the numbers of "Objections, and what was found" in docs/study.md: `python -m examples.study.objections`.

They come from `examples/study/results/`, except for the simulated errors of the decision rule.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr, ttest_1samp

from examples.study.collect import RESULTS
from examples.study.data import BY_ESS, BY_KL, COLLAPSES, LEARNS, STALE_UPDATES, Result, Study, read_study
from examples.study.forms import GATES, Forms
from examples.study.grid import RULED
from examples.study.statistics import FEWEST_SEEDS, SAMPLES, paired_difference

Measure = Callable[[Study, Result], float]
_DELTA = 0.0003  # of the rule by KL
_ENDS, _MIDDLES = (48, 72, 96), (36, 60, 84)  # updates after the last update of a cycle, and after its fourth


def main() -> None:
    """Prints each table under a heading."""
    study = read_study(RESULTS)
    for title, lines in (
        ("False decisions of the rule, simulated", simulated_errors()),
        ("One-sided minus two-sided, by measure", differences(study)),
        ("Classes of runs", classes(study)),
        ("End of a cycle minus its middle", end_minus_middle(study)),
        ("Drift", drift(study)),
        ("Rise and fall (b.2)", rise_and_fall(study)),
        ("Gradient norms above 1, and at the ends of a cycle", norms(study)),
        ("Tokens with a weight below 1/2, at 3 lr*", light_tokens(study)),
        ("Rewards of the first cycle", [first_cycle(study)]),
        ("Rules of the learning rate (j), at 3 lr*", rules(study)),
    ):
        print(f"\n{title}\n", *lines, sep="\n  ")


def simulated_errors(trials: int = 1000, comparisons: int = 16) -> Iterator[str]:
    """Yields how often the percentile rule and a t-test find differences among normal values that have none."""
    rng = np.random.default_rng(2)
    drawn = rng.integers(FEWEST_SEEDS, size=(SAMPLES, FEWEST_SEEDS))
    weights = np.stack([(drawn == seed).mean(axis=1) for seed in range(FEWEST_SEEDS)], axis=1)
    for correlation in (0.0, 0.5):
        smallest: list[tuple[float, float]] = []
        single: list[tuple[float, float]] = []
        for _ in range(trials):
            own = rng.normal(size=(comparisons, FEWEST_SEEDS))
            values = np.sqrt(1 - correlation) * own + np.sqrt(correlation) * rng.normal(size=(1, FEWEST_SEEDS))
            means = values @ weights.T
            beyond = np.minimum((means <= 0).sum(axis=1), (means >= 0).sum(axis=1))
            percentile = np.minimum(1, 2 * (1 + beyond) / (1 + SAMPLES))
            found: Any = ttest_1samp(values, 0, axis=1)
            t_test = found.pvalue
            smallest.append((percentile.min(), t_test.min()))
            single.append((percentile[0], t_test[0]))
        any_of, one = (np.array(pairs) < level for pairs, level in ((smallest, 0.05 / comparisons), (single, 0.05)))
        yield (
            f"correlation {correlation}: one comparison {one[:, 0].mean():.2f}, t {one[:, 1].mean():.2f}; "
            f"any of {comparisons} {any_of[:, 0].mean():.2f}, t {any_of[:, 1].mean():.2f}"
        )


def _cells(study: Study) -> Iterator[tuple[Forms, int, dict[int, Result], dict[int, Result]]]:
    """Yields (gate, multiple of lr*, two-sided runs, one-sided runs) of each cell of question a."""
    for factor in (1, 3):
        for gate in GATES:
            if factor == 1 or gate.core:
                cell = study.cell(STALE_UPDATES, factor)
                yield gate, factor, study.runs(gate.two_sided, cell), study.runs(gate.one_sided, cell)


def _at(study: Study, run: Result, updates: Sequence[int]) -> float:
    curve = dict(study.curve(run))
    return float(np.mean([curve[update] for update in updates]))


MEASURES: Mapping[str, Measure] = {
    "final": lambda study, run: run.final,
    "area": lambda study, run: run.area,
    "best": lambda study, run: max(value for _, value in study.curve(run)),
    "middles": lambda study, run: _at(study, run, _MIDDLES),
    "update 12": lambda study, run: _at(study, run, [12]),
    "sampled": lambda study, run: float(
        np.mean([value for update, value in study.curve(run, "reward") if update >= 89])
    ),
}


def differences(study: Study) -> Iterator[str]:
    """Yields the differences of each gate by each measure; "+" is the number of seeds with a positive one."""
    for gate, factor, two, one in _cells(study):
        cells = []
        for name, measure in MEASURES.items():
            found = [{seed: measure(study, run) for seed, run in runs.items()} for runs in (one, two)]
            if difference := paired_difference(*found):
                positive = sum(found[0][seed] > found[1][seed] for seed in found[0].keys() & found[1].keys())
                cells.append(f"{name} {difference.estimate.mean:+.3f} ({positive}+ of {difference.seeds})")
        yield f"{factor} lr*  {gate.name}: {', '.join(cells)}"


def classes(study: Study) -> Iterator[str]:
    """Yields the numbers of runs by their ends, for each form and learning rate."""
    for factor, form in itertools.product((1, 3), ("two-sided", "one-sided")):
        runs = [
            run
            for _, at, two, one in _cells(study)
            if at == factor
            for run in (two if form == "two-sided" else one).values()
        ]
        best = MEASURES["best"]
        yield (
            f"{factor} lr*, {form}: {len(runs)} runs, {sum(run.kind == COLLAPSES for run in runs)} collapse, "
            f"{sum(run.final < run.first for run in runs)} end below their start, "
            f"{sum(run.kind == LEARNS for run in runs)} learn, "
            f"{sum(best(study, run) < run.first + 0.1 for run in runs)} are never 0.10 above their start"
        )


def end_minus_middle(study: Study) -> Iterator[str]:
    """Yields the mean difference of pass@1 between the ends and the middles of cycles."""
    for factor, form in itertools.product((1, 3), (2, 1)):
        values = [
            _at(study, run, _ENDS) - _at(study, run, _MIDDLES)
            for _, at, *runs in _cells(study)
            if at == factor
            for run in runs[2 - form].values()
        ]
        yield f"{factor} lr*, {'two' if form == 2 else 'one'}-sided: {np.mean(values):+.3f} over {len(values)} runs"


def drift(study: Study) -> Iterator[str]:
    """Yields the rank correlation of drift and final over cells, and the effect of the form with and without drift.

    Drift is the mean of log KL(π_old‖π) over the last updates of the cycles.
    """
    cells, rows = [], []
    for _, factor, *forms in _cells(study):
        for form, runs in enumerate(forms):
            drifts = {run.seed: _drift(study, run) for run in runs.values()}
            if drifts:
                cells.append((np.mean(list(drifts.values())), np.mean([run.final for run in runs.values()])))
            rows += [(factor, form, run.seed, drifts[run.seed], run.area) for run in runs.values()]
    drifts_of, finals_of = zip(*cells, strict=True)
    correlation: Any = spearmanr(drifts_of, finals_of)
    yield f"{len(cells)} cells: rank correlation of drift and final {correlation.statistic:.2f}"
    for factor in (1, 3):
        here = np.array([row[1:] for row in rows if row[0] == factor], dtype=float)
        form, seed, drifts, area = here.T
        seeds = (seed[:, None] == np.unique(seed)).astype(float)
        alone, given = (
            np.linalg.lstsq(np.column_stack([form, *more, seeds]), area, rcond=None)[0][0] for more in ([], [drifts])
        )
        yield f"{factor} lr*: the one-sided form is worth {alone:+.3f} of area, and {given:+.3f} given the drift"


def _drift(study: Study, run: Result) -> float:
    last = [value for update, value in study.curve(run, "kl_old") if update % STALE_UPDATES == 0]
    return float(np.mean(np.log(last)))


def rise_and_fall(study: Study) -> Iterator[str]:
    """Yields when lost tokens first exceed 1 % in two-sided runs, SAPO's left out, and when pass@1 first falls."""
    for factor in (1, 3):
        rises, falls, count = [], [], 0
        for gate, at, two, _ in _cells(study):
            for run in two.values() if at == factor and gate.name != "SAPO" else ():
                count += 1
                lost = [dict(study.curve(run, f"below_half_{name}")) for name in ("positive_below", "negative_above")]
                rises += [next((u for u in lost[0] if lost[0][u] + lost[1].get(u, 0) > 0.01), None)]
                falls += [next((u for u, value in study.curve(run) if value < run.first), None)]
        risen, fallen = ([update for update in found if update is not None] for found in (rises, falls))
        yield (
            f"{factor} lr*: {count} runs, {len(risen)} rise, the last at update {max(risen, default=0):.0f}; "
            f"{len(fallen)} fall, the first at update {min(fallen, default=0):.0f}"
        )


def norms(study: Study) -> Iterator[str]:
    """Yields the share of updates whose gradient is clipped, and the mean norms of a cycle's first and last updates."""
    for factor, form in itertools.product((1, 3), (2, 1)):
        values = [
            point
            for _, at, *runs in _cells(study)
            if at == factor
            for run in runs[2 - form].values()
            for point in study.curve(run, "grad_norm")
        ]
        first, last = (
            np.mean([norm for update, norm in values if update % STALE_UPDATES == place]) for place in (1, 0)
        )
        share = np.mean([norm > 1 for _, norm in values])
        yield (
            f"{factor} lr*, {'two' if form == 2 else 'one'}-sided: {share:.1%} above 1; {first:.2f} in the first "
            f"update of a cycle, {last:.2f} in the last"
        )


def light_tokens(study: Study) -> Iterator[str]:
    """Yields the mean share of tokens whose weight is below one half, by objective, at the largest learning rate."""
    for gate, factor, *forms in _cells(study):
        for label, runs in zip((gate.two_sided, gate.one_sided), forms, strict=True):
            shares = [value for run in runs.values() for _, value in study.curve(run, "below_half")]
            if factor == 3 and shares:
                yield f"{label}: {np.mean(shares):.0%}"


def first_cycle(study: Study) -> str:
    """Returns the largest number of different rewards that one seed has in one update of the first cycle."""
    found: dict[tuple[int, float], set[float]] = {}
    for _, _, *forms in _cells(study):
        for run in (run for runs in forms for run in runs.values()):
            for update, reward in study.curve(run, "reward"):
                if update <= STALE_UPDATES:
                    found.setdefault((run.seed, update), set()).add(reward)
    return f"{max(map(len, found.values()), default=0)} for each seed and update"


def rules(study: Study) -> Iterator[str]:
    """Yields final minus that of a constant rate with the same mean, and how the rule by KL follows the cycle.

    The final of a constant rate is interpolated in its logarithm, between lr*/3, lr* and 3 lr* of the same seed.
    """
    constant = {factor: study.cell(STALE_UPDATES, factor) for factor in (1 / 3, 1, 3)}
    rates = [np.log(cell.lr) for cell in constant.values() if cell.lr]
    for rule in (BY_KL, BY_ESS):
        for label in RULED:
            finals = [study.runs(label, cell) for cell in constant.values()]
            found, ratios = [], []
            for seed, run in study.runs(label, study.cell(STALE_UPDATES, 3, variant=rule)).items():
                mean_rate = np.mean([rate for _, rate in study.curve(run, "learning_rate")])
                found.append(run.final - np.interp(np.log(mean_rate), rates, [runs[seed].final for runs in finals]))
                kl = [value for _, value in study.curve(run, "kl_old")]
                ratios += [np.reshape(kl, (-1, STALE_UPDATES)) / _DELTA]
            ratio = np.concatenate(ratios)
            factors = np.minimum(1, ratio.clip(1e-30) ** -0.5)
            line = f"{label}, {rule}: {np.mean(found):+.3f}, p of t {tuple(ttest_1samp(found, 0))[1]:.2f}"
            if rule == BY_KL:
                later = ratio[:, 1:]
                by_place = factors.mean(axis=0).var() / factors.var()
                line += f"; KL / δ after the first update {np.median(later[:, 0]):.1f}, at all later ones "
                line += f"{np.median(later):.0f}, below 1 in {(later < 1).mean():.1%}; "
                line += f"of the factor's variance {by_place:.0%} by its place in the cycle"
            yield line


if __name__ == "__main__":
    main()
