"""Statistics over seeds: interquartile means, stratified bootstrap intervals, probabilities of improvement.

The statistics are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(arXiv 2108.13264), computed with scipy. A stratum holds the values of one setting, one per seed. A bootstrap sample
draws as many values from each stratum as it has, with replacement.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
SAMPLES = 10_000  # of the bootstrap
_CUT = 0.25  # the share of the values cut at each end, rounded down as in scipy's trim_mean
_SEED = 0  # of the bootstrap, so that the same runs give the same table

Strata = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Interval:
    """An estimate with its percentile interval; `low` and `high` are None if a stratum has one value."""

    estimate: float
    low: float | None = None
    high: float | None = None


def interquartile_mean(strata: Strata, *, samples: int = SAMPLES) -> Interval:
    """Returns the mean of all values without the lowest and the highest quarter."""
    from scipy.stats import trim_mean

    def statistic(*drawn: Any, axis: int = -1) -> Any:
        return trim_mean(np.concatenate(drawn, axis=axis), _CUT, axis=axis)

    return _interval(strata, statistic, samples)


def probability_of_improvement(first: Strata, second: Strata, *, samples: int = SAMPLES) -> Interval:
    """Returns P(X > Y) + P(X = Y) / 2 for a run X of `first` and a run Y of `second`, as the mean over strata.

    Per stratum this is the Mann-Whitney U statistic divided by the number of pairs.

    Args:
        first: the values of X, a stratum per setting.
        second: the values of Y for the same settings in the same order.
        samples: the number of bootstrap samples.
    """
    from scipy.stats import mannwhitneyu

    def statistic(*drawn: Any, axis: int = -1) -> Any:
        shares = []
        for x, y in zip(drawn[: len(first)], drawn[len(first) :], strict=True):
            pairs = x.shape[axis] * y.shape[axis]
            shares.append(mannwhitneyu(x, y, axis=axis, method="asymptotic").statistic / pairs)
        return np.mean(shares, axis=0)

    return _interval([*first, *second], statistic, samples)


def _interval(strata: Strata, statistic: Callable[..., Any], samples: int) -> Interval:
    from scipy.stats import bootstrap

    data = tuple(np.asarray(stratum, dtype=np.float64) for stratum in strata)
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):  # for p-values of equal values
        warnings.simplefilter("ignore", RuntimeWarning)
        estimate = float(statistic(*data))
        if any(len(stratum) < 2 for stratum in data):
            return Interval(estimate)
        found = bootstrap(
            data,
            statistic,
            n_resamples=samples,
            confidence_level=CONFIDENCE,
            method="percentile",
            vectorized=True,
            rng=np.random.default_rng(_SEED),
        ).confidence_interval
    return Interval(estimate, float(found.low), float(found.high))
