"""Equality of dataclasses that hold arrays."""

from dataclasses import fields
from typing import Any

import numpy as np


class EqualByArrays:
    """A base of dataclasses (`eq=False`): equal objects have equal fields, and equal arrays the same type and values.

    Such an object has no hash.
    """

    __slots__ = ()
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # pyright: ignore


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    return one == other
