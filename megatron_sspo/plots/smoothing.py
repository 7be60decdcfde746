"""The mean over a window around each value of a curve."""

import math
from collections.abc import Sequence

import numpy as np


def smoothed(values: Sequence[float], share: float) -> list[float]:
    """Returns the mean over a window around each value; unlike a mean over past values, it does not lag.

    A value that is not finite stays NaN, and the windows of the others leave it out.

    Args:
        share: the width of the window as a share of all values.
    """
    if not values:
        return []
    found = np.asarray(values, dtype=np.float64)
    known = np.isfinite(found)
    half = math.ceil(len(found) * share / 2)
    # each window is added up by itself: a difference of running sums would lose the small values after a large one
    padded, counted = (np.pad(one, half) for one in (np.where(known, found, 0.0), known.astype(float)))
    sums, counts = (np.convolve(one, np.ones(2 * half + 1), "valid") for one in (padded, counted))
    return np.where(known, sums / np.maximum(counts, 1), np.nan).tolist()
