"""The kind of a recipe's objective, which is called to check it."""

from typing import Annotated, Any

import torch
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from megatron_sspo.config.check_objective import WHAT, check_objective
from megatron_sspo.config.process_state import process_state_kept
from megatron_sspo.objective import Objective


@torch.enable_grad()  # a file of the user's may have turned gradients off for the whole process
def _checked(value: Any) -> Any:
    with process_state_kept("the objective"):
        try:
            check_objective(value)
        except ValueError as error:
            raise PydanticCustomError("objective", "Input should be {what}", {"what": str(error)}) from error
    return value


CheckedObjective = Annotated[Objective, PlainValidator(_checked), Field(description=WHAT)]
