"""Estimates compared with naive computation, and intervals compared with closed forms."""

import itertools
import math
import random

import pytest

from sspo_lab.estimate import Estimate, greedy_pass, sampled_avg, sampled_pass


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_pass_at_j_is_the_share_of_subsets_with_a_correct_answer(k: int) -> None:
    for count, j in itertools.product(range(k + 1), range(1, k + 1)):
        subsets = list(itertools.combinations([True] * count + [False] * (k - count), j))
        assert sampled_pass([count], k, j).mean == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [  # interval ends with four decimals, as published: Newcombe, Statistics in Medicine 17 (1998), table I
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_of_pass_at_1_is_wilsons_interval(right: int, of: int, low: float, high: float) -> None:
    found = greedy_pass([True] * right + [False] * (of - right))
    assert found.mean == pytest.approx(right / of)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_answers_that_agree_within_a_prompt_count_once_and_independent_ones_each() -> None:
    assert interval(sampled_avg([4, 0] * 10, 4)) == pytest.approx(interval(greedy_pass([True, False] * 10)))
    assert interval(sampled_avg([2] * 20, 4)) == pytest.approx(interval(greedy_pass([True, False] * 40)))
    between = sampled_avg([4, 0, 3, 1] * 5, 4)
    assert sampled_avg([2] * 20, 4).low > between.low > sampled_avg([4, 0] * 10, 4).low


def test_for_many_prompts_the_interval_is_that_of_the_clustered_standard_error() -> None:
    draw = random.Random(1)
    counts = [sum(draw.random() < p for _ in range(8)) for p in (draw.random() for _ in range(5000))]
    found, values = sampled_avg(counts, 8), [count / 8 for count in counts]
    error = math.sqrt(sum((value - found.mean) ** 2 for value in values)) / len(values)
    assert interval(found) == pytest.approx((found.mean - 1.96 * error, found.mean + 1.96 * error), abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_interval_coverage(seed: int) -> None:
    """Checks a coverage of about 95 %, for 40 prompts of different difficulty with 4 answers each."""
    draw, covered, tries = random.Random(seed), 0, 400
    for _ in range(tries):
        rates = [draw.choice((0.05, 0.3, 0.9)) for _ in range(40)]
        found = sampled_avg([sum(draw.random() < rate for _ in range(4)) for rate in rates], 4)
        covered += found.low <= (0.05 + 0.3 + 0.9) / 3 <= found.high
    assert 0.91 < covered / tries < 0.985


def interval(found: Estimate) -> tuple[float, float]:
    return found.low, found.high
