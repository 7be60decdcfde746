"""Checks that a part of an objective leaves the tensors that it is given as they are."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def kept(part: str, **given: Tensor) -> Iterator[None]:
    """A context manager for code that may be the user's: a gate, a pooling, a factor, an objective.

    The tensors share their memory with log-probs or advantages that are used again, so that a change would silently
    give another gradient.

    Args:
        part: what the code is, for the message: "the gate Bounded".
        given: the tensors, by the names of the parameters.

    Raises:
        ValueError: a tensor has been changed in place.
    """
    before = {name: values._version for name, values in given.items() if not values.is_inference()}
    yield
    for name, version in before.items():
        if given[name]._version != version:
            raise ValueError(
                f"{part} changes {name} in place: use functions that return a new tensor, such as clamp instead of "
                "clamp_"
            )
