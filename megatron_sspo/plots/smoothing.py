"""The mean over a window around each value of a curve."""

import math
from collections.abc import Sequence
from itertools import accumulate


def smoothed(values: Sequence[float], share: float) -> list[float]:
    """Returns the mean over a window around each value; unlike a mean over past values, it does not lag.

    A value that is not finite stays NaN, and the windows of the others leave it out.

    Args:
        share: the width of the window as a share of all values.
    """
    half = math.ceil(len(values) * share / 2)
    is_known = list(map(math.isfinite, values))
    sums = _window_sums([value if known else 0.0 for value, known in zip(values, is_known, strict=True)], half)
    counts = _window_sums(list(map(float, is_known)), half)
    return [total / n if known else math.nan for total, n, known in zip(sums, counts, is_known, strict=True)]


def _window_sums(values: Sequence[float], half: int) -> list[float]:
    """Returns the sum over the window of each value: itself and up to `half` values on each side.

    The values are cut into blocks as wide as a window, so that a window is the end of one block and the beginning of
    the next. A difference of two running sums would lose the small values after a large one.
    """
    width, last = 2 * half + 1, len(values) - 1
    blocks = [values[start : start + width] for start in range(0, len(values), width)]
    beginnings = [total for block in blocks for total in accumulate(block)]  # up to each value
    ends = [total for block in blocks for total in reversed([*accumulate(reversed(block))])]  # from each value
    found = []
    for place in range(len(values)):
        first, final = max(0, place - half), min(last, place + half)
        if first % width == 0:
            found.append(beginnings[final])
        elif first // width == final // width:  # at the end of all values
            found.append(ends[first])
        else:
            found.append(ends[first] + beginnings[final])
    return found
