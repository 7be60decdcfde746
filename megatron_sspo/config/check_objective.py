"""Checks a user's objective by calling it on three small batches. It needs torch alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from megatron_sspo.config.naming import describe_value, one_line
from megatron_sspo.objective import Segments, Sums
from megatron_sspo.objective.in_place import kept
from megatron_sspo.objective.inputs import needs_of

WHAT = "an objective, such as sspo() or grpo(eps_high=0.28)"
_SCALAR = "Sums, whose loss is a finite scalar"
_GRADIENT = "an objective whose loss has a finite gradient with respect to log_probs, also where they are old_log_probs"
_BATCHES: tuple[tuple[list[int], list[float], str], ...] = (  # lengths, advantages, and what such a batch is called
    ([2, 1], [1.0, -1.0], "on three tokens"),
    ([2, 1], [0.0, 0.0], "on three tokens without advantage"),
    ([], [], "on a microbatch without sequences, as a rank may have one,"),
)


def check_objective(value: Any) -> None:
    """Calls an objective on three batches, and takes the gradient, for which torch's gradients have to be on.

    Raises ValueError if the object cannot be an objective; the text is what it must be, "an objective that ...".
    """
    if isinstance(value, type) or not callable(value):
        raise ValueError(WHAT)
    try:
        needs = needs_of(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"an objective whose needs can be given, but {one_line(str(error))}") from error
    found = [_check_batch(value, needs, *batch) for batch in _BATCHES]
    names = [sorted(map(str, (*sums.tokens, *sums.sequences))) for sums in found]
    for others, (_, _, when) in zip(names, _BATCHES, strict=True):
        if others != names[0]:
            raise ValueError(
                f"an objective that always reports values of the same names; {when} it reports "
                f"{', '.join(others) or 'none'}, and otherwise {', '.join(names[0]) or 'none'}"
            )


def _check_batch(
    value: Any, needs: Sequence[str], lengths: Sequence[int], advantages: Sequence[float], when: str
) -> Sums:
    segments = Segments.from_lengths(lengths)
    log_probs = torch.tensor([-1.0, -2.0, -3.0][: segments.num_tokens], requires_grad=True)
    given = {"old_log_probs": log_probs.detach().clone(), "advantages": torch.tensor(advantages)}
    inputs = {name: log_probs.detach().abs() for name in needs}
    try:
        with kept("the objective", **given, **inputs):
            sums: Any = value(log_probs, *given.values(), segments, **inputs)
    except Exception as error:
        raise ValueError(
            f"{WHAT}, that takes {', '.join(['log_probs', *given, 'segments', *inputs])}; {when} it raised "
            f"{type(error).__name__}: {one_line(str(error))}"
        ) from error
    if fault := _fault_of_sums(sums, segments):
        raise ValueError(f"an objective that returns {fault}")
    if not sums.loss.isfinite():
        raise ValueError(f"an objective that returns {_SCALAR}; {when} it is {sums.loss.item()}")
    _check_gradient(sums.loss, log_probs, when)
    return sums


def _fault_of_sums(sums: Any, segments: Segments) -> str:
    """Returns what an objective's result must be, if it is not that: the end of "it must return ..."; otherwise ""."""
    if not isinstance(sums, Sums) or not isinstance(sums.loss, torch.Tensor) or sums.loss.shape != ():
        return _SCALAR
    for kind, count in {"tokens": segments.num_tokens, "sequences": segments.num_sequences}.items():
        values = getattr(sums, kind)
        what = f"Sums that have a dict of tensors as {kind}, each with one number for each of the {kind}"
        if not isinstance(values, Mapping):
            return f"{what}; it is {describe_value(values)}"
        for name, value in values.items():
            if not isinstance(value, torch.Tensor) or value.shape != (count,):
                return f"{what}; {name!r} is {describe_value(value)} for {count} {kind}"
    return ""


def _check_gradient(loss: torch.Tensor, log_probs: torch.Tensor, when: str) -> None:
    if not loss.requires_grad:
        raise ValueError(
            f"{_GRADIENT}; {when} it has none, because the loss is detached or computed from numbers: use every "
            "log-prob, if only times zero as in (0 * log_probs).sum(), instead of a constant"
        )
    try:
        (gradient,) = torch.autograd.grad(loss, log_probs, allow_unused=True)
    except RuntimeError as error:  # a tensor that the gradient needs was changed in place, for example
        raise ValueError(f"{_GRADIENT}; {when} torch says {one_line(str(error))}") from error
    if gradient is None or not gradient.isfinite().all():
        raise ValueError(f"{_GRADIENT}; {when} it is {None if gradient is None else gradient.tolist()}")
