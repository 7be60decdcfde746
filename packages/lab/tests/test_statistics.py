"""Statistics of sweeps, against numbers computed by hand and naive bootstraps."""

import itertools

import numpy as np
import pytest

from sspo_lab.statistics import interquartile_mean, probability_of_improvement


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert interquartile_mean([[0.0, 1.0, 2.0, 100.0]]).estimate == 1.5
    assert interquartile_mean([[5.0, 1.0, 3.0, 2.0, -50.0]]).estimate == 2.0  # of five values, one is cut at each end
    assert interquartile_mean([[1.0, 2.0, 6.0]]).estimate == 3.0  # of three values, none is cut
    assert interquartile_mean([[0.0, 100.0], [1.0, 2.0]]).estimate == 1.5  # over all strata together


def test_a_stratum_of_one_value_has_no_interval() -> None:
    for found in (interquartile_mean([[0.5]]), interquartile_mean([[0.5], [0.1, 0.2]])):
        assert found.low is None and found.high is None
    assert probability_of_improvement([[0.5]], [[0.4, 0.3]]).low is None
    assert probability_of_improvement([[0.5]], [[0.4, 0.3]]).estimate == 1.0


def test_the_probability_of_improvement_counts_pairs() -> None:
    assert probability_of_improvement([[1.0, 2.0, 3.0]], [[1.0, 2.0, 2.5]]).estimate == (0.5 + 1.5 + 3) / 9
    assert probability_of_improvement([[1.0, 2.0]], [[1.0, 2.0]]).estimate == 0.5
    first, second = [[1.0, 1.0], [5.0, 6.0]], [[2.0, 2.0], [1.0, 2.0]]
    assert probability_of_improvement(first, second).estimate == 0.5  # 0 in one setting and 1 in the other
    back = probability_of_improvement(second, first)
    assert back.estimate == 0.5 and (back.low, back.high) == (0.5, 0.5)


def test_the_interval_is_that_of_all_samples_there_are() -> None:
    """Three values have 27 equally likely bootstrap samples, so the exact quantiles are known."""
    values = [0.1, 0.4, 0.9]
    means = sorted(np.mean(sample) for sample in itertools.product(values, repeat=3))
    found = interquartile_mean([values], samples=40_000)
    assert (found.low, found.high) == pytest.approx((means[0], means[-1]))  # 1/27 is more than 2.5 %
    values = [0.1, 0.3, 0.4, 0.9]
    every = [np.mean(sorted(sample)[1:3]) for sample in itertools.product(values, repeat=4)]
    found = interquartile_mean([values], samples=40_000)
    assert (found.low, found.high) == pytest.approx((np.quantile(every, 0.025), np.quantile(every, 0.975)))


def test_a_sample_is_drawn_within_each_stratum() -> None:
    """If all values within a stratum are equal, the result is deterministic."""
    found = interquartile_mean([[0.0, 0.0], [1.0, 1.0]])
    assert (found.estimate, found.low, found.high) == (0.5, 0.5, 0.5)
    found = interquartile_mean([[0.0, 1.0], [0.0, 1.0]])
    assert found.low == 0.0 and found.high == 1.0
