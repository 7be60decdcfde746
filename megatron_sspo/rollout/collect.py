"""One cycle's rollouts: prompts shared out over the processes, answered, scored, and brought together again."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from megatron_sspo.errors import UserError
from megatron_sspo.objective import advantages
from megatron_sspo.resolve import resolve
from megatron_sspo.reward.protocol import Reward, checked_score
from megatron_sspo.rollout.engine import NeedsWeights, RolloutEngine, Sampling
from megatron_sspo.types import Prompt, RolloutGroup


def collect(
    engine: RolloutEngine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    group_size: int,
    seed: int,
    sync: Callable[[], None],
    with_routes: bool = False,
) -> list[RolloutGroup]:
    """`group_size` scored responses to each prompt, in the prompts' order, the same list on every process.

    Engines that live in the trainer's processes each answer their share; servers are driven by rank 0. The seed and
    the prompt alone decide a response, so the shares may be cut anyhow.

    Args:
        sync: gives the engine the policy's weights, again. A collective.

    Raises:
        UserError: routes are wanted, and the engine reports none.
    """
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if engine.replicated:
        mine = prompts[rank::world_size]
    else:
        mine = prompts if rank == 0 else []
    while True:
        try:
            groups = engine.generate(mine, sampling, group_size=group_size, seed=seed) if mine else []
            has_weights = True
        except NeedsWeights:
            groups, has_weights = [], False
        if engine.replicated or _from_rank_0(has_weights):
            break
        sync()
    if with_routes and any(rollout.routes is None for group in groups for rollout in group.rollouts):
        raise UserError(
            "routing_replay is R3, and the rollout engine reports no routes: choose an engine that does, or R2"
        )
    groups = score(reward, groups) if groups else []
    shares: list[Any] = [groups]
    if world_size > 1:
        shares = [None] * world_size
        dist.all_gather_object(shares, groups)
    if not engine.replicated:
        return shares[0]
    # by place, not by id: a stream that begins a new epoch within one call draws a prompt twice
    in_order: list[Any] = [None] * len(prompts)
    for number, share in enumerate(shares):
        in_order[number::world_size] = share
    return in_order


def _from_rank_0(value: bool) -> bool:
    """Rank 0's value, on every process."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def score(reward: Reward, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """The groups with the parts of each reward filled in.

    Raises:
        UserError: a reward is not a finite number; the message names the prompt.
    """
    prompts = [group.prompt for group in groups for _ in group.rollouts]
    parts = iter(checked_score(reward, prompts, [rollout.text for group in groups for rollout in group.rollouts]))
    return [replace(group, rollouts=[replace(r, reward_parts=next(parts)) for r in group.rollouts]) for group in groups]


def with_advantages(groups: Sequence[RolloutGroup], estimator: str) -> list[RolloutGroup]:
    """The groups with Â_i filled in.

    Args:
        estimator: a function of `megatron_sspo.objective.advantages`, or `package.module:attribute`, from the rewards
            [G] of a group to its advantages [G].
    """
    function = resolve_advantage(estimator)

    def filled(group: RolloutGroup) -> RolloutGroup:
        values = function(torch.tensor([rollout.reward for rollout in group.rollouts], dtype=torch.float64)).tolist()
        return replace(group, rollouts=[replace(r, advantage=a) for r, a in zip(group.rollouts, values, strict=True)])

    return [filled(group) for group in groups]


def resolve_advantage(name: str) -> Any:
    """The advantage function of that name. Raises UserError where there is none."""
    if ":" in name:
        return resolve("objective", name, name.partition(":")[2])
    known = {
        key: value
        for key, value in vars(advantages).items()
        if inspect.isfunction(value) and value.__module__ == advantages.__name__ and not key.startswith("_")
    }
    if name not in known:
        raise UserError(
            f"there is no advantage named {name!r}: choose one of {', '.join(sorted(known))}, or name your own as "
            "package.module:attribute"
        )
    return known[name]
