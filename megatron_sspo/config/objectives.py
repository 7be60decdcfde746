"""Checks that an object can be a run's objective by calling it on a batch of three tokens."""

import inspect
import math
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import torch
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from megatron_sspo import objective
from megatron_sspo.config.naming import describe_value, one_line
from megatron_sspo.config.surroundings import surroundings_kept
from megatron_sspo.objective import Objective, Segments, Sums
from megatron_sspo.objective.average import average_of
from megatron_sspo.objective.inputs import needs_of

_SCALAR = "Sums, whose loss is a finite scalar"
_WHAT = "an objective, such as sspo() or grpo(eps_high=0.28)"


@torch.enable_grad()  # a file of the user's may have turned gradients off for the whole process
def _check_objective(value: Any) -> Any:
    with surroundings_kept("the objective"):
        return _checked_objective(value)


def _checked_objective(value: Any) -> Any:
    if isinstance(value, type) or not callable(value):
        _reject(_WHAT)
    segments = Segments.from_lengths([2, 1])
    log_probs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    arguments = (log_probs, log_probs.detach().clone(), torch.tensor([1.0, -1.0]), segments)
    try:
        inputs = {name: log_probs.detach().abs() for name in needs_of(value)}
    except (TypeError, ValueError) as error:
        _reject(f"an objective whose needs can be given, but {one_line(str(error))}")
    try:
        inspect.signature(value).bind(*arguments, **inputs)
    except (TypeError, ValueError) as error:
        if getattr(value, "__module__", "").startswith(objective.__name__):  # such as sspo, which was not called
            _reject(_WHAT)
        names = ", ".join([*inspect.signature(Objective.__call__).parameters, *inputs][1:])
        _reject(f"an objective that can be called with {names}, but {one_line(str(error))}")
    try:
        sums: Any = value(*arguments, **inputs)
        fault = fault_of_sums(sums, segments)
        is_finite = bool(fault) or bool(sums.loss.isfinite())
    except Exception as error:
        _reject(
            "an objective that takes log_probs, old_log_probs, advantages and segments; on three tokens it raised "
            f"{type(error).__name__}: {one_line(str(error))}"
        )
    if fault or not is_finite:
        _reject(f"an objective that returns {fault or _SCALAR}")
    _check_gradient(sums.loss, log_probs)
    try:
        divisor = average_of(value).divisor(2, 3)
    except Exception as error:
        _reject(
            "an objective whose average is one such as OverTokens() or OverLength(1024); its divisor raised "
            f"{type(error).__name__}: {one_line(str(error))}"
        )
    if not 0 < divisor < math.inf:
        _reject(f"an objective whose average has a finite divisor above 0, not {divisor}")
    return value


def fault_of_sums(sums: Any, segments: Segments) -> str:
    """Returns what an objective's result must be, if it is not that: the end of "it must return ..."; otherwise ""."""
    if not isinstance(sums, Sums) or not isinstance(sums.loss, torch.Tensor):
        return _SCALAR
    if sums.loss.shape != () or not sums.loss.is_floating_point():
        return _SCALAR
    counts = {"tokens": segments.num_tokens, "sequences": segments.num_sequences}
    return next(
        filter(None, (_fault_of_values(getattr(sums, kind), kind, count) for kind, count in counts.items())), ""
    )


def _fault_of_values(values: Any, kind: str, count: int) -> str:
    what = f"Sums that have a dict of tensors as {kind}, each with one number for each of the {kind}"
    if not isinstance(values, Mapping):
        return f"{what}; it is {describe_value(values)}"
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            return f"{what}; {describe_value(name)} is {describe_value(value)}"
        if value.shape != (count,):
            return f"{what}; {describe_value(name)} has the shape {tuple(value.shape)} for {count} {kind}"
    return ""


def _check_gradient(loss: torch.Tensor, log_probs: torch.Tensor) -> None:
    what = "an objective whose loss has a finite gradient with respect to log_probs, also where they are old_log_probs"
    if not loss.requires_grad:
        _reject(f"{what}; it has none, because the loss is detached or computed from numbers")
    try:
        (gradient,) = torch.autograd.grad(loss, log_probs, allow_unused=True)
    except RuntimeError as error:  # a tensor that the gradient needs was changed in place, for example
        _reject(f"{what}; torch says {one_line(str(error))}")
    if gradient is None or not gradient.isfinite().all():
        _reject(f"{what}; it is {None if gradient is None else gradient.tolist()}")


def _reject(what: str) -> NoReturn:
    raise PydanticCustomError("objective", "objective", {"what": what})


CheckedObjective = Annotated[Objective, PlainValidator(_check_objective), Field(description=_WHAT)]
