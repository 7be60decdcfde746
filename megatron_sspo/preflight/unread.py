"""Finds settings without effect, because another setting is off or because of the model's or the run's length."""

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_sspo.config.naming import describe_value
from megatron_sspo.run import Optimizer, Run
from megatron_sspo.weights.family import size

_READ_BY_MODE = {
    "none": (),
    "truncated": ("level", "cap"),
    "masked": ("level", "cap", "floor"),
    "binary_kl": ("level", "max_kl"),
}


def unread_settings(run: Run, config: Mapping[str, Any]) -> list[str]:
    """Returns a line for each such setting: "penalties.kl_estimator is 'k2', and not used: penalties.kl_coef is 0.0".

    They are no errors: a run that leaves out a part of a recipe, for comparison, or is shortened, keeps the settings of
    that part.

    Args:
        run: the configuration.
        config: the content of the model's config.json.
    """
    return [
        *_unused(run),
        *_unused_replay(run),
        *_too_long_responses(run, config),
        *_too_long_warmups(run),
        *_beyond_the_end(run),
    ]


def _unused_replay(run: Run) -> Iterator[str]:
    """Yields a line for routing replay that has no routes to replay."""
    if run.routing_replay == "R2" and run.updates_per_sync == 1:
        yield (
            "routing_replay is 'R2', and not used: updates_per_sync is 1, so that no update has a pass of π_old, in "
            "which routes are recorded"
        )


def _too_long_responses(run: Run, config: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each limit of responses that no response can reach in the model's positions."""
    positions = size(config, "max_position_embeddings")
    limits = {"rollouts.sampling.max_tokens": run.rollouts.sampling.max_tokens}
    if run.evaluation:
        limits |= {f"evaluation.sets.{name}.max_tokens": one.max_tokens for name, one in run.evaluation.sets.items()}
    for place, limit in limits.items():
        if limit >= positions:
            yield (
                f"{place} is {limit}, and the model has {positions} positions (max_position_embeddings): prompt and "
                "response together end there"
            )


def _too_long_warmups(run: Run) -> Iterator[str]:
    """Yields a line for each optimizer whose warm-up does not end before the last update."""
    optimizers = {"": (run.optimizer, run.num_updates, "num_updates")}
    if run.warm_start:
        optimizers["warm_start."] = (run.warm_start.optimizer, run.warm_start.updates, "warm_start.updates")
    for place, (optimizer, updates, name) in optimizers.items():
        if optimizer.warmup_updates > updates:
            yield (
                f"{place}optimizer.warmup_updates is {optimizer.warmup_updates}, and {name} is {updates}: the learning "
                f"rate never reaches {place}optimizer.lr"
            )


def _beyond_the_end(run: Run) -> Iterator[str]:
    """Yields a line for each interval that is longer than the run, and for rollouts that no update trains on."""
    num_updates = run.num_updates
    if run.checkpoint_every > num_updates:
        yield (
            f"checkpoint_every is {run.checkpoint_every}, and num_updates is {num_updates}: no checkpoint is saved "
            "before the last update, and a killed run begins again"
        )
    if run.evaluation and run.evaluation.every > num_updates:
        yield (
            f"evaluation.every is {run.evaluation.every}, and num_updates is {num_updates}: the run is evaluated "
            "before and after only"
        )
    if left := -num_updates % run.updates_per_sync:
        yield (
            f"updates_per_sync is {run.updates_per_sync}, and num_updates is {num_updates}: the last cycle generates "
            f"responses for {left} more update{'s' * (left > 1)}, which trains only if the run is resumed with more"
        )


def _unused(run: Run) -> list[str]:
    """Returns a line for each setting that differs from its default, and that nothing reads."""
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
