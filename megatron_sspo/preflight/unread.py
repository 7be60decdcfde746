"""Finds settings without effect, because another setting is off, and rollouts in FP8 without a correction."""

from collections.abc import Iterator
from typing import Any

from megatron_sspo.config.naming import describe_value
from megatron_sspo.run import Run

_READ_BY_MODE = {
    "none": (),
    "truncated": ("level", "cap"),
    "masked": ("level", "cap", "floor"),
    "binary_kl": ("level", "max_kl"),
}


def unread_settings(run: Run) -> Iterator[str]:
    """Yields a line for each such setting: "penalties.kl_estimator is 'k2', and not used: penalties.kl_coef is 0.0".

    They are no errors: a run that leaves out a part of a recipe, for comparison, keeps the settings of that part.
    """
    for place, group, names, reason in _unread(run):
        for name in names:
            value = getattr(group, name)
            if value != getattr(type(group)(), name):
                yield f"{place}.{name} is {describe_value(value)}, and not used: {reason}"
    if run.routing_replay == "R2" and run.updates_per_sync == 1 and not run.kl_in_reward:
        yield "routing_replay is 'R2', and not used: updates_per_sync is 1, so that no update has a pass of π_old"
    if run.rollouts.options.get("quantize") and run.correction.mode == "none" and run.old_policy == "trainer":
        replay = " and, for a mixture of experts, routing_replay=R3" if run.routing_replay != "R3" else ""
        yield (
            f"rollouts.options.quantize is {run.rollouts.options['quantize']!r}, and nothing corrects the difference "
            f"between trainer and engine: correction.mode=truncated{replay} would"
        )


def _unread(run: Run) -> Iterator[tuple[str, Any, tuple[str, ...], str]]:
    """Yields the fields of a group that nothing reads, and the setting that is the reason."""
    rollouts, correction = run.rollouts, run.correction
    if run.optimizer.schedule == "constant":
        yield "optimizer", run.optimizer, ("min_lr",), "optimizer.schedule is 'constant'"
    if run.warm_start:
        yield "warm_start.optimizer", run.warm_start.optimizer, ("offload",), "a warm start has optimizer.offload"
    if not rollouts.overlong_buffer:
        yield "rollouts", rollouts, ("overlong_penalty",), "rollouts.overlong_buffer is 0"
    if not rollouts.refills:
        yield "rollouts", rollouts, ("min_pass_rate", "max_pass_rate"), "rollouts.refills is 0"
    if not rollouts.agent:
        yield "rollouts.endpoint", rollouts.endpoint, tuple(vars(rollouts.endpoint)), "rollouts.agent is ''"
    if not run.penalties.kl_coef:
        yield "penalties", run.penalties, ("kl_estimator",), "penalties.kl_coef is 0.0"
    names = tuple(name for name in vars(correction) if name not in ("mode", *_READ_BY_MODE[correction.mode]))
    yield "correction", correction, names, f"correction.mode is {correction.mode!r}"
