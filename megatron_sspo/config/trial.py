"""Calls an object as an objective on small batches, and says what an objective would be. It needs torch alone."""

import inspect
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch

from megatron_sspo import objective
from megatron_sspo.config.naming import describe_value, one_line
from megatron_sspo.objective import Objective, Segments, Sums
from megatron_sspo.objective.average import average_of
from megatron_sspo.objective.in_place import kept
from megatron_sspo.objective.inputs import needs_of

_SCALAR = "Sums, whose loss is a finite scalar"
WHAT = "an objective, such as sspo() or grpo(eps_high=0.28)"
REMEDY = "use every log-prob, if only times zero as in (0 * log_probs).sum(), instead of a constant"
"""The remedy for a loss without a gradient."""
_BATCHES: tuple[tuple[list[int], list[float], str], ...] = (  # lengths, advantages, and what such a batch is called
    ([2, 1], [1.0, -1.0], "on three tokens"),
    ([2, 1], [0.0, 0.0], "on three tokens without advantage"),
    ([], [], "on a microbatch without sequences, as a rank may have one,"),
)


def try_objective(value: Any) -> None:
    """Calls an objective on three batches, and takes the gradient, for which torch's gradients have to be on.

    Raises:
        ValueError: the object cannot be an objective; the text is what it must be, "an objective that ...".
    """
    if isinstance(value, type) or not callable(value):
        raise ValueError(WHAT)
    try:
        needs = needs_of(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"an objective whose needs can be given, but {one_line(str(error))}") from error
    names = [_names(_try_batch(value, needs, *batch)) for batch in _BATCHES]
    for found, (_, _, when) in zip(names, _BATCHES, strict=True):
        if found != names[0]:
            raise ValueError(
                f"an objective that always reports values of the same names; {when} it reports "
                f"{', '.join(found) or 'none'}, and otherwise {', '.join(names[0]) or 'none'}"
            )
    try:
        divisor: object = average_of(value).divisor(2, 3)
    except Exception as error:
        raise ValueError(
            "an objective whose average is one such as OverTokens() or OverLength(1024); its divisor raised "
            f"{type(error).__name__}: {one_line(str(error))}"
        ) from error
    if not isinstance(divisor, Real) or not 0 < divisor < math.inf:
        raise ValueError(
            f"an objective whose average has a finite number above 0 as its divisor, not {describe_value(divisor)}"
        )


def _try_batch(
    value: Any, needs: Sequence[str], lengths: Sequence[int], advantages: Sequence[float], when: str
) -> Sums:
    segments = Segments.from_lengths(lengths)
    log_probs = torch.tensor([-1.0, -2.0, -3.0][: segments.num_tokens], requires_grad=True)
    given = {"old_log_probs": log_probs.detach().clone(), "advantages": torch.tensor(advantages)}
    inputs = {name: log_probs.detach().abs() for name in needs}
    arguments = (log_probs, *given.values(), segments)
    try:
        inspect.signature(value).bind(*arguments, **inputs)
    except (TypeError, ValueError) as error:
        if getattr(value, "__module__", "").startswith(objective.__name__):  # such as sspo, which was not called
            raise ValueError(WHAT) from error
        names = ", ".join([*inspect.signature(Objective.__call__).parameters, *inputs][1:])
        raise ValueError(f"an objective that can be called with {names}, but {one_line(str(error))}") from error
    try:
        with kept("the objective", **given, **inputs):
            sums: Any = value(*arguments, **inputs)
        fault = fault_of_sums(sums, segments)
        is_finite = bool(fault) or bool(sums.loss.isfinite())
    except Exception as error:
        raise ValueError(
            f"an objective that takes log_probs, old_log_probs, advantages and segments; {when} it raised "
            f"{type(error).__name__}: {one_line(str(error))}"
        ) from error
    if fault or not is_finite:
        raise ValueError(f"an objective that returns {fault or f'{_SCALAR}; {when} it is {sums.loss.item()}'}")
    _check_gradient(sums.loss, log_probs, when)
    return sums


def _names(sums: Sums) -> list[str]:
    return sorted(map(str, (*sums.tokens, *sums.sequences)))


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


def _check_gradient(loss: torch.Tensor, log_probs: torch.Tensor, when: str) -> None:
    what = "an objective whose loss has a finite gradient with respect to log_probs, also where they are old_log_probs"
    if not loss.requires_grad:
        raise ValueError(f"{what}; {when} it has none, because the loss is detached or computed from numbers: {REMEDY}")
    try:
        (gradient,) = torch.autograd.grad(loss, log_probs, allow_unused=True)
    except RuntimeError as error:  # a tensor that the gradient needs was changed in place, for example
        raise ValueError(f"{what}; {when} torch says {one_line(str(error))}") from error
    if gradient is None or not gradient.isfinite().all():
        raise ValueError(f"{what}; {when} it is {None if gradient is None else gradient.tolist()}")
