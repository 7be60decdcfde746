"""Converts sequences of numbers to read-only arrays of one dimension and of the type in which they are kept."""

from array import array as typed_array
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def token_array(tokens: ArrayLike) -> np.ndarray:
    """Returns tokens as int32 [n].

    An array that is read-only and of that type already is returned as it is; anything else is copied. Raises ValueError
    if these are not integers, do not fit, or have another number of dimensions.
    """
    return _integers(_array(tokens, "tokens", "i"), np.dtype(np.int32), "tokens")


def log_prob_array(values: ArrayLike) -> np.ndarray:
    """Returns log-probs as float32 [n]: see `number_array`."""
    return number_array(values, "log-probs")


def number_array(values: ArrayLike, what: str = "numbers") -> np.ndarray:
    """Returns numbers, which messages call `what`, as float32 [n], and copies as `token_array` does.

    Raises ValueError if these are not numbers, or have another number of dimensions.
    """
    array = _array(values, what, "f")
    if array.dtype == np.float32 and _is_kept(array):
        return array
    if array.ndim != 1 or (array.size and array.dtype.kind not in "fiu"):
        raise ValueError(f"{what}: they are {_describe(array)}, and must be numbers in one dimension")
    with np.errstate(over="ignore"):  # a log-prob below float32's range becomes -inf
        return freeze(array.astype(np.float32))


def route_array(routes: ArrayLike) -> np.ndarray:
    """Returns numbers of experts [n] as uint8 or, if they are too large for that, uint16; copies as `token_array` does.

    Dimensions are joined into one. Raises ValueError if these are not integers, or do not fit.
    """
    array = _array(routes, "routes").reshape(-1)
    is_small = array.dtype == np.uint8 or (array.dtype != np.uint16 and (not array.size or array.max() < 256))
    return _integers(array, np.dtype(np.uint8 if is_small else np.uint16), "routes")


def freeze(array: np.ndarray) -> np.ndarray:
    """Makes an array that nobody else holds read-only, and returns it."""
    array.flags.writeable = False
    return array


def _integers(array: np.ndarray, dtype: np.dtype[Any], what: str) -> np.ndarray:
    if array.dtype == dtype and _is_kept(array):
        return array
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{what}: they are {_describe(array)}, and must be integers in one dimension")
    limits = np.iinfo(dtype)
    if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
        raise ValueError(f"{what}: they are {array.min()} to {array.max()}, and must fit into {dtype}")
    return freeze(array.astype(dtype))


def _array(values: Any, what: str, code: str = "") -> np.ndarray:
    """Returns the values as an array of any type.

    Args:
        code: the type of `array.array` as which numbers in a list or tuple are read, if they all have it: that is the
            fastest way, and neither cuts a fraction off nor makes a number of None.
    """
    if code and isinstance(values, (list, tuple)) and values:
        try:
            return freeze(np.frombuffer(typed_array(code, values), dtype=code))
        except (TypeError, OverflowError):
            pass  # the caller checks the array that follows, and raises an error in words for the user
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{what}: {error}") from error


def _is_kept(array: np.ndarray) -> bool:
    return array.ndim == 1 and not array.flags.writeable


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"
