"""The legend above a figure stays within the figure, whatever its names are."""

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from megatron_sspo.plots.labels import draw_legend, shorten


@pytest.mark.parametrize("length", [3, 150, 2000])
@pytest.mark.parametrize(("count", "size"), [(1, 12.0), (4, 12.0), (20, 8.0)])
def test_a_legend_is_within_the_figure(length, count, size):
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
