"""Fills in the advantages of scored groups, by a function of the rewards, of the rollouts, or of the whole cycle."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from megatron_sspo.batching.holders import with_rollouts
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.errors import UserError
from megatron_sspo.objective import advantages
from megatron_sspo.processes import agree
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, rollouts_of

_ROUNDING = 1e-6  # of advantages that are 0
_LARGEST_EXAMPLE = 1024  # responses of a group, so that a check takes no memory


def with_advantages(groups: Sequence[RolloutGroup], estimator: str) -> list[RolloutGroup]:
    """Returns the groups with Â_i filled in, or with Â_it if the function returns advantages of tokens. A collective.

    All rollouts of an episode get the advantage of the episode.

    Args:
        groups: all groups of a cycle, whole on rank 0.
        estimator: name of a function of `megatron_sspo.objective.advantages`, or `package.module:attribute`. The
            function maps the rewards [G] of a group to its advantages: [G], or a sequence of G tensors with one number
            for each token of a response. If it has a parameter `rollouts`, it is given the group's rollouts too, one
            for each reward. Its attribute `batch_step`, if there is one, maps all advantages of the cycle [N] to the
            advantages that are used [N].
    """
    function, what, rollouts = resolve_advantage(estimator), f"the advantage {estimator!r}", rollouts_of(groups)
    values: list[torch.Tensor] = []

    def evaluate() -> list[tuple[float, bool]]:
        values.extend(_evaluate(function, groups, what))
        return [(_mean(rollout, value), value.ndim > 0) for rollout, value in zip(rollouts, values, strict=True)]

    # rewards are known to every rank, but ranks other than 0 have only outlines of the rollouts
    means = agree.run_on_rank_0(evaluate) if _takes_rollouts(function) else evaluate()
    if values:
        return with_rollouts(groups, [_filled(r, value) for r, value in zip(rollouts, values, strict=True)])
    return with_rollouts(groups, [_outlined(r, *mean) for r, mean in zip(rollouts, means, strict=True)])


def without_truncated(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Returns the groups with advantages of 0 for rollouts that were cut off, which so have no gradient."""
    return with_rollouts(groups, [_masked(r) if r.finish_reason == "length" else r for r in rollouts_of(groups)])


def _masked(rollout: Rollout) -> Rollout:
    given = rollout.token_advantages
    values = given if given is None or rollout.is_outline else np.zeros_like(given)
    return replace(rollout, advantage=0.0, token_advantages=values)


def _evaluate(function: Callable[..., Any], groups: Sequence[RolloutGroup], what: str) -> list[torch.Tensor]:
    """Computes the advantage of each rollout [], or those of its tokens [n], the batch-wide step included."""
    found = [_group_advantages(function, group, what) for group in groups]
    step = getattr(function, "batch_step", None)
    if step is not None and found:
        flat = [value.reshape(-1) for values in found for value in values]
        given = torch.cat(flat)
        changed = _call(step, f"the batch_step of {what}", given)
        if not _is_finite(changed, given.shape):
            raise _refusal(f"the batch_step of {what}", changed, given, "advantages")
        pieces = iter(changed.detach().cpu().double().split([len(value) for value in flat]))
        found = [[next(pieces).reshape(value.shape) for value in values] for values in found]
    return [
        value
        for group, values in zip(groups, found, strict=True)
        for value, branches in zip(values, group.episodes, strict=True)
        for _ in branches
    ]


def _group_advantages(function: Callable[..., Any], group: RolloutGroup, what: str) -> list[torch.Tensor]:
    """Returns the advantage of each episode of a group, or the advantages of its tokens."""
    rewards = torch.tensor([rollouts[0].reward for rollouts in group.episodes], dtype=torch.float64)
    if group.has_equal_rewards:
        rewards = rewards[:1].repeat(len(rewards))  # without rounding errors, for any function
    more = {"rollouts": list(group.rollouts)} if _takes_rollouts(function) else {}
    found = _call(function, what, rewards, **more)
    lengths = [len(rollouts[0].tokens) for rollouts in group.episodes]
    may_be_per_token = bool(more) and isinstance(found, (list, tuple)) and len(found) == len(lengths)
    if not _is_finite(found, rewards.shape) and not (
        may_be_per_token and all(_is_finite(value, (length,)) for value, length in zip(found, lengths, strict=True))
    ):
        raise _refusal(what, found, rewards, "rewards")
    return [value.detach().cpu().double() for value in found]


def _refusal(what: str, found: Any, given: torch.Tensor, kind: str) -> UserError:
    return UserError(
        f"{what} returned {describe_value(found)} for {len(given)} {kind}, {describe_value(given.tolist())}: it must "
        f"be a tensor of as many finite numbers, also where all {kind} are equal"
    )


def _call(function: Callable[..., Any], what: str, values: torch.Tensor, **more: Any) -> Any:
    try:
        with user_code_errors("it", always=True):
            return function(values, **more)
    except UserError as error:
        raise UserError(
            f"{what} cannot be computed for {len(values)} numbers, {describe_value(values.tolist())}: {error}"
        ) from error


def _is_finite(value: Any, shape: Sequence[int]) -> bool:
    """Returns whether a value is a tensor of finite numbers of that shape."""
    return isinstance(value, torch.Tensor) and value.shape == torch.Size(shape) and bool(value.isfinite().all())


def _filled(rollout: Rollout, value: torch.Tensor) -> Rollout:
    rollout = replace(rollout, advantage=_mean(rollout, value))
    if not value.ndim:
        return rollout
    return replace(rollout, token_advantages=np.where(rollout.response_mask(), value.numpy(), 0.0))


def _outlined(rollout: Rollout, mean: float, is_per_token: bool) -> Rollout:
    rollout = replace(rollout, advantage=mean)
    return rollout.outline(token_advantages=len(rollout.tokens)) if is_per_token else rollout


def _mean(rollout: Rollout, value: torch.Tensor) -> float:
    """Returns the mean over the tokens that the policy sampled; 0 without any."""
    if not value.ndim:
        return float(value)
    own = value[torch.from_numpy(rollout.response_mask())]
    return float(own.mean()) if len(own) else 0.0


def _takes_rollouts(function: Any) -> bool:
    """Returns whether an advantage function has a parameter `rollouts`."""
    try:
        return "rollouts" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def check_advantage(name: str, group_size: int, *, may_branch: bool = False, refills: int = 0) -> None:
    """Calls an advantage function with a group of different rewards and one of equal rewards, and checks the results.

    Raises:
        UserError: there is no such function, it or its `batch_step` raises or does not return one finite number per
            reward or token, it needs one rollout for each reward and episodes may have several (`may_branch`), or
            groups of equal rewards are replaced (`refills`) although they have a gradient.
    """
    function, what = resolve_advantage(name), f"the advantage {name!r}"
    if may_branch and _takes_rollouts(function):
        raise UserError(
            f"{what} is computed from one rollout for each reward, and an agent's episode may have several: set "
            "rollouts.endpoint.max_branches to 1, or choose another advantage"
        )
    size = min(group_size, _LARGEST_EXAMPLE)
    different = _example_group(torch.linspace(0, 1, size, dtype=torch.float64).tolist())
    equal = _example_group([0.0] * size)  # as at the start of a run in which no response is right
    for groups in ([different, equal], [equal]):
        _evaluate(function, groups, what)
    if refills:
        balanced = _example_group([0.0] * size, balanced=True)
        of_equal = _evaluate(function, [different, equal, balanced], what)[size:]
        if any(value.abs().max() > _ROUNDING for value in of_equal):
            raise UserError(
                f"rollouts.refills is {refills}, which replaces groups of equal rewards, and {what} gives them a "
                "gradient: set rollouts.refills to 0, or choose another advantage"
            )


def _example_group(rewards: Sequence[float], *, balanced: bool = False) -> RolloutGroup:
    """Returns a group of these rewards; if `balanced`, they are sums of three parts that differ between responses."""
    rollouts = []
    for index, reward in enumerate(rewards):
        length = 1 + index % 8
        parts = {"answer": reward + index, "format": -index / 2, "length": -index / 2}
        rollout = Rollout(
            tokens=np.zeros(length, dtype=np.int32),
            rollout_log_probs=np.full(length, -1.0, dtype=np.float32),
            text="",
            finish_reason="stop",
            policy_version=0,
            reward_parts=parts if balanced else {"answer": reward},
        )
        rollouts.append(rollout)
    return RolloutGroup(prompt=Prompt(id="example", tokens=(0,), answer=""), rollouts=rollouts)


def resolve_advantage(name: str) -> Any:
    """Returns the advantage function of that name. Raises UserError if there is none."""
    if ":" in name:
        return resolve("objective", name, name.partition(":")[2])
    known = {
        key: value
        for key, value in vars(advantages).items()
        if inspect.isfunction(value)
        and value.__module__ == advantages.__name__
        and key[0] != "_"
        and "rewards" in inspect.signature(value).parameters
    }
    if name not in known:
        raise UserError(
            f"there is no advantage named {name!r}: choose one of {', '.join(sorted(known))}, or name your own as "
            "package.module:attribute"
        )
    return known[name]
