"""Decides which differences of rewards are rounding errors of float64."""

from collections.abc import Iterable

ROUNDING = 1e-12
"""The largest difference, relative to the size of the numbers, that counts as a rounding error."""


def are_equal(numbers: Iterable[float]) -> bool:
    """Returns whether finite numbers differ by rounding errors alone, as 0.1 + 0.7 + 0.2 and 0.7 + 0.2 + 0.1 do."""
    found = list(numbers)
    lowest, highest = min(found, default=0.0), max(found, default=0.0)
    return highest / 2 - lowest / 2 <= ROUNDING / 2 * max(abs(lowest), abs(highest))  # halves do not overflow
