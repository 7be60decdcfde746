"""Statistics of the study (docs/study.md): paired differences over seeds, Holm's correction, Wilson intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
SAMPLES = 10_000  # of the bootstrap
FEWEST_SEEDS = 8  # of a decided comparison
_CURVE_SAMPLES = 2_000  # of the bootstrap at each point of a band
_SEED = 0  # of the bootstrap, so that the same runs give the same report


@dataclass(frozen=True)
class Estimate:
    """A mean with its percentile interval; `low` and `high` are None if there is one value."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The mean over seeds of A − B.

    Attributes:
        estimate: the mean with its interval.
        p: the two-sided percentile p-value; None with one seed.
        p_t: the two-sided p-value of a paired t-test; None with one seed, or if all differences are equal.
        seeds: the number of seeds that both have.
        probability: P(A > B) + P(A = B) / 2 over all pairs of a run of A and a run of B.
    """

    estimate: Estimate
    p: float | None
    p_t: float | None
    seeds: int
    probability: float


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Returns the difference of two objectives' values by seed; None if they have no seed in common.

    The p-value is twice the share of bootstrap means on the far side of zero, with the observed mean counted in, so
    that it is never zero: 2 (1 + min(#{m ≤ 0}, #{m ≥ 0})) / (1 + 10,000), and at most 1.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    values = [first[seed] - second[seed] for seed in seeds]
    drawn = bootstrap_means(values)
    a, b = np.array(list(first.values()))[:, None], np.array(list(second.values()))
    return Difference(
        estimate=with_interval(float(np.mean(values)), drawn),
        p=None if drawn is None else percentile_p(drawn),
        p_t=t_test_p(values),
        seeds=len(seeds),
        probability=float(((a > b) + (a == b) / 2).mean()),
    )


def mean(values: Sequence[float]) -> Estimate:
    """Returns the mean of the values with its bootstrap interval."""
    return with_interval(float(np.mean(values)), bootstrap_means(values))


def bootstrap_means(values: Sequence[float]) -> np.ndarray | None:
    """Returns the means of the bootstrap samples; None for a single value, which has no spread."""
    from scipy.stats import bootstrap

    if len(values) < 2:
        return None
    found = bootstrap(
        (np.asarray(values, dtype=np.float64),),
        np.mean,
        n_resamples=SAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(_SEED),
    )
    return found.bootstrap_distribution


def mean_curve(curves: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the mean of curves over their points, and both ends of its interval; a bootstrap sample draws curves."""
    values = np.asarray(curves, dtype=np.float64)
    drawn = np.random.default_rng(_SEED).integers(len(values), size=(_CURVE_SAMPLES, len(values)))
    means = values[drawn].mean(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return values.mean(axis=0), low, high


def nested_mean(groups: Sequence[Sequence[float]]) -> Estimate:
    """Returns the mean of the groups' means; a bootstrap sample draws groups, and then values in each of them."""
    rng = np.random.default_rng(_SEED)
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    estimate = float(np.mean([array.mean() for array in arrays]))
    if sum(map(len, arrays)) < 2:
        return Estimate(estimate)
    chosen = rng.integers(len(arrays), size=(SAMPLES, len(arrays)))
    drawn = np.empty(chosen.shape)
    for group, array in enumerate(arrays):
        places = chosen == group
        drawn[places] = array[rng.integers(len(array), size=(np.count_nonzero(places), len(array)))].mean(axis=1)
    return with_interval(estimate, drawn.mean(axis=1))


def with_interval(estimate: float, drawn: np.ndarray | None) -> Estimate:
    """Returns an estimate with the percentile interval of its bootstrap values, if there are any."""
    if drawn is None:
        return Estimate(estimate)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(estimate, float(low), float(high))


def percentile_p(drawn: np.ndarray) -> float:
    """Returns the two-sided p-value of a mean of zero."""
    beyond = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
    return min(1.0, 2 * (1 + beyond) / (1 + len(drawn)))


def t_test_p(values: Sequence[float]) -> float | None:
    """Returns the two-sided p-value of Student's t-test of a mean of zero; None if the values have no spread."""
    from scipy.stats import ttest_1samp

    if len(set(values)) < 2:
        return None
    found: Any = ttest_1samp(values, 0.0)
    return float(found.pvalue)


def t_interval(values: Sequence[float]) -> Estimate:
    """Returns the mean with Student's interval; that of values without spread has no width."""
    from scipy.stats import sem, t

    mean_ = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean_)
    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * sem(values))
    return Estimate(mean_, mean_ - reach, mean_ + reach)


def holm(values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted by Holm's method: the i-th smallest of m, times m − i + 1, and never below the last.

    S. Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    adjusted, largest = [0.0] * len(values), 0.0
    for place, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        largest = max(largest, min(1.0, (len(values) - place) * values[index]))
        adjusted[index] = largest
    return adjusted


def wilson(successes: int, trials: int) -> Estimate:
    """Returns a rate with its Wilson interval."""
    from scipy.stats import binomtest

    found = binomtest(successes, trials).proportion_ci(confidence_level=CONFIDENCE, method="wilson")
    return Estimate(successes / trials, float(found.low), float(found.high))
