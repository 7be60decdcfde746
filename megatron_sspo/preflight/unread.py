"""Finds settings that differ from their defaults and that nothing reads, because another setting is off."""

from collections.abc import Iterator
from typing import Any

from megatron_sspo.config.naming import describe_value
from megatron_sspo.run import Optimizer, Run

_READ_BY_MODE = {
    "none": (),
    "truncated": ("level", "cap"),
    "masked": ("level", "cap", "floor"),
    "binary_kl": ("level", "max_kl"),
}


def unread_settings(run: Run) -> list[str]:
    """Returns a line for each such setting: "penalties.kl_estimator is 'k1', and not used: penalties.kl_coef is 0.0".

    They are no errors: a run that leaves out a part of a recipe, for comparison, keeps the settings of that part.
    """
    return [
        f"{place}.{name} is {describe_value(getattr(group, name))}, and not used: {reason}"
        for place, group, names, reason in _unread(run)
        for name in names
        if getattr(group, name) != getattr(type(group)(), name)
    ]


def _unread(run: Run) -> Iterator[tuple[str, Any, tuple[str, ...], str]]:
    """Yields the fields of a group that nothing reads, and the setting that is the reason."""
    rollouts, correction = run.rollouts, run.correction
    yield from _unread_of_schedule("optimizer", run.optimizer)
    if run.warm_start:
        yield from _unread_of_schedule("warm_start.optimizer", run.warm_start.optimizer)
    if not rollouts.overlong_buffer:
        yield "rollouts", rollouts, ("overlong_penalty",), "rollouts.overlong_buffer is 0"
    if not rollouts.agent:
        names = tuple(rollouts.endpoint.__dataclass_fields__)
        yield "rollouts.endpoint", rollouts.endpoint, names, "rollouts.agent is ''"
    if not run.penalties.kl_coef:
        yield "penalties", run.penalties, ("kl_estimator",), "penalties.kl_coef is 0.0"
    read = ("mode", *_READ_BY_MODE[correction.mode])
    names = tuple(name for name in correction.__dataclass_fields__ if name not in read)
    yield "correction", correction, names, f"correction.mode is {correction.mode!r}"


def _unread_of_schedule(place: str, optimizer: Optimizer) -> Iterator[tuple[str, Any, tuple[str, ...], str]]:
    if optimizer.schedule == "constant":
        yield place, optimizer, ("min_lr",), f"{place}.schedule is 'constant'"
