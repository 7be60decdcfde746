"""Finds settings without effect, because of another setting or a length, and rollouts in FP8 without a correction."""

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_sspo.config.naming import describe_value
from megatron_sspo.run import Run
from megatron_sspo.weights.family import size

_READ_BY_MODE = {
    "none": (),
    "truncated": ("level", "cap"),
    "masked": ("level", "cap", "floor"),
    "binary_kl": ("level", "max_kl"),
}


def unread_settings(run: Run, config: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each such setting: "penalties.kl_estimator is 'k2', and not used: penalties.kl_coef is 0.0".

    They are no errors: a run that leaves out a part of a recipe, for comparison, or is shortened, keeps the settings of
    that part.

    Args:
        run: the configuration.
        config: the content of the model's config.json.
    """
    for place, group, names, reason in _unread(run):
        for name in names:
            value = getattr(group, name)
            if value != getattr(type(group)(), name):
                yield f"{place}.{name} is {describe_value(value)}, and not used: {reason}"
    num_updates, positions = run.num_updates, size(config, "max_position_embeddings")
    if run.routing_replay == "R2" and run.updates_per_sync == 1:
        yield "routing_replay is 'R2', and not used: updates_per_sync is 1, so that no update has a pass of π_old"
    if run.rollouts.options.get("quantize") and run.correction.mode == "none" and run.old_policy == "trainer":
        replay = " and, for a mixture of experts, routing_replay=R3" if run.routing_replay != "R3" else ""
        yield (
            f"rollouts.options.quantize is {run.rollouts.options['quantize']!r}, and nothing corrects the difference "
            f"between trainer and engine: correction.mode=truncated{replay} would"
        )
    of_run = f"num_updates is {num_updates}"
    limits = [  # each with the largest value that has an effect
        (
            "rollouts.sampling.max_tokens",
            run.rollouts.sampling.max_tokens,
            positions - 1,
            f"the model has {positions} positions (max_position_embeddings): prompt and response together end there",
        ),
        (
            "optimizer.warmup_updates",
            run.optimizer.warmup_updates,
            num_updates,
            f"{of_run}: the learning rate never reaches optimizer.lr",
        ),
        (
            "checkpoint_every",
            run.checkpoint_every,
            num_updates,
            f"{of_run}: no checkpoint is saved before the last update, and a killed run begins again",
        ),
        (
            "evaluation.every",
            run.evaluation.every if run.evaluation else 0,
            num_updates,
            f"{of_run}: the run is evaluated before and after only",
        ),
    ]
    yield from (f"{place} is {value}, and {what}" for place, value, largest, what in limits if value > largest)
    if left := -num_updates % run.updates_per_sync:
        yield (
            f"updates_per_sync is {run.updates_per_sync}, and num_updates is {num_updates}: the last cycle generates "
            f"responses for {left} more update{'s' * (left > 1)}, which trains only if the run is resumed with more"
        )


def _unread(run: Run) -> Iterator[tuple[str, Any, tuple[str, ...], str]]:
    """Yields the fields of a group that nothing reads, and the setting that is the reason."""
    rollouts, correction = run.rollouts, run.correction
    if run.optimizer.schedule == "constant":
        yield "optimizer", run.optimizer, ("min_lr",), "optimizer.schedule is 'constant'"
    if not rollouts.overlong_buffer:
        yield "rollouts", rollouts, ("overlong_penalty",), "rollouts.overlong_buffer is 0"
    if not rollouts.agent:
        yield "rollouts.endpoint", rollouts.endpoint, tuple(vars(rollouts.endpoint)), "rollouts.agent is ''"
    if not run.penalties.kl_coef:
        yield "penalties", run.penalties, ("kl_estimator",), "penalties.kl_coef is 0.0"
    read = ("mode", *_READ_BY_MODE[correction.mode])
    names = tuple(name for name in vars(correction) if name not in read)
    yield "correction", correction, names, f"correction.mode is {correction.mode!r}"
