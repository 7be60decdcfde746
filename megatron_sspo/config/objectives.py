"""Checks that an object can be a run's objective by calling it on small batches."""

from typing import Annotated, Any

import torch
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from megatron_sspo.config.naming import one_line
from megatron_sspo.config.process_state import process_state_kept
from megatron_sspo.config.trial import WHAT, try_objective
from megatron_sspo.objective import Objective, Segments
from megatron_sspo.objective.average import average_of, shares_of


@torch.enable_grad()  # a file of the user's may have turned gradients off for the whole process
def _check_objective(value: Any) -> Any:
    with process_state_kept("the objective"):
        try:
            try_objective(value)
            _check_share(value)
        except ValueError as error:
            raise PydanticCustomError("objective", "objective", {"what": str(error)}) from error
    return value


def _check_share(value: Any) -> None:
    """Checks what an objective's average says that a sequence counts for: penalties are averaged by it."""
    try:
        shares_of(average_of(value), Segments.from_lengths([2, 1]))
    except Exception as error:
        raise ValueError(
            "an objective whose average is one such as OverTokens() or OverLength(1024), but "
            f"{type(error).__name__}: {one_line(str(error))}"
        ) from error


CheckedObjective = Annotated[Objective, PlainValidator(_check_objective), Field(description=WHAT)]
