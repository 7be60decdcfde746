"""A reduction over the tokens before each one."""

from collections.abc import Callable

import torch
from torch import Tensor

from megatron_sspo.objective.segments import Segments


def before(values: Tensor, segments: Segments, combine: Callable[[Tensor, Tensor], Tensor], neutral: float) -> Tensor:
    """Combines the values of the tokens before each one in its sequence: [T] -> [T]; `neutral` for the first of each.

    A result depends on its own sequence alone, to the last bit: the other sequences of the microbatch do not change the
    order of the combinations. There are log₂ T of them, and none waits for the host.
    """
    found, distance = _earlier(values, segments, 1, neutral), 1
    while distance < segments.num_tokens:
        found = combine(found, _earlier(found, segments, distance, neutral))
        distance *= 2
    return found


def _earlier(values: Tensor, segments: Segments, distance: int, neutral: float) -> Tensor:
    """Returns the value of the token `distance` places before each, `neutral` where its sequence has none."""
    is_same = segments.ids[distance:] == segments.ids[:-distance]
    moved = torch.where(is_same, values[:-distance], neutral)
    return torch.cat([values.new_full((distance,), neutral), moved])[: segments.num_tokens]
