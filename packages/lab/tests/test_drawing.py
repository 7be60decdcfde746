"""The parts of figures: smoothed curves and legends."""

import math
import random

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sspo_lab.drawing import draw_legend, shorten, smoothed


@pytest.mark.parametrize("count", [0, 1, 2, 13, 26, 100, 257])
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


@pytest.mark.parametrize(("count", "size", "length"), [(1, 12.0, 2000), (4, 12.0, 3), (4, 12.0, 150), (20, 8.0, 150)])
def test_a_legend_is_within_the_figure(count, size, length):
    figure = Figure(figsize=(13, 9), layout="constrained")
    figure.subplots(3, 3)
    names = [f"{number}{'abcdefW=' * length}"[:length] for number in range(count)]
    draw_legend(figure, [Line2D([], []) for _ in names], names, size=size)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width
    assert len(legend.get_texts()) == count


def test_a_name_loses_its_middle():
    assert shorten("objective=sspo,seed=0", 21) == "objective=sspo,seed=0"
    assert shorten("objective=sspo,seed=0", 11) == "objec…eed=0"
    assert len(shorten("x" * 100, 28)) == 28 and len(shorten("x" * 100, 11)) == 11
