"""The mean over a window around each value of a curve."""

import math
import random

import pytest

from megatron_sspo.plots.smoothing import smoothed


@pytest.mark.parametrize("count", [0, 1, 2, 3, 12, 13, 25, 26, 99, 100, 101, 257])
def test_each_value_is_the_mean_of_its_window(count: int) -> None:
    chance = random.Random(count)
    values = [chance.choice([chance.random(), math.nan, math.inf]) for _ in range(count)]
    half = math.ceil(count * 0.08 / 2)
    for place, value in enumerate(smoothed(values, 0.08)):
        known = [x for x in values[max(0, place - half) : place + half + 1] if math.isfinite(x)]
        assert value == pytest.approx(sum(known) / len(known)) if math.isfinite(values[place]) else math.isnan(value)


def test_one_large_value_changes_its_own_window_alone() -> None:
    values = [1.5] * 100
    values[9] = 1e20
    found = smoothed(values, 0.08)
    assert found[:5] + found[14:] == [1.5] * 91 and found[5:14] == [1e20 / 9] * 9
