"""Distributes prompts over the processes, and gathers the scored responses."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from megatron_sspo.batching.holders import outline
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.environment.protocol import Environment
from megatron_sspo.errors import UserError
from megatron_sspo.objective import advantages
from megatron_sspo.processes import agree
from megatron_sspo.processes.exchange import exchange
from megatron_sspo.reward.overlong import Overlong
from megatron_sspo.reward.protocol import Reward, checked_score
from megatron_sspo.rollout.engine import Generation, NeedsWeights, RolloutEngine
from megatron_sspo.types import Prompt, RolloutGroup, Sampling


@dataclass(frozen=True)
class PendingGeneration:
    """A generation in progress. The prompts are the same on every process."""

    engine: RolloutEngine
    prompts: Sequence[Prompt]
    generation: Generation | None  # None: rank 0 drives servers, and this is another rank


def start_generation(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    group_size: int,
    seed: int,
    environment: Environment | None = None,
) -> PendingGeneration:
    """Begins `group_size` responses to each prompt. Without an environment a response is a single turn.

    A replicated engine answers the share of its process; servers are driven by rank 0. The seed and the prompt alone
    determine a response of a replicated engine, so the split into shares does not matter.
    """
    rank, world_size = _rank_and_world_size()
    if not engine.replicated and rank != 0:
        return PendingGeneration(engine, prompts, None)
    mine = prompts[rank::world_size] if engine.replicated else prompts
    if environment is not None:
        sampling = replace(sampling, stop=tuple(dict.fromkeys((*sampling.stop, *environment.stop))))
    generation = engine.start(mine, sampling, group_size=group_size, seed=seed, environment=environment)
    return PendingGeneration(engine, prompts, generation)


def gather_groups(
    pending: PendingGeneration,
    score: Callable[[Sequence[RolloutGroup]], list[RolloutGroup]],
    *,
    sync: Callable[[], None],
    is_enough: Callable[[Sequence[RolloutGroup]], bool] = lambda groups: False,
) -> list[RolloutGroup | None]:
    """Waits for the groups and returns them scored, in the order of the prompts.

    Rank 0 has them whole, and all other processes have their outlines.

    Args:
        pending: the generation that `start_generation` returned.
        score: function that fills in rewards; it is called while other responses are still being generated.
        sync: collective that sends the policy's weights to the engine again.
        is_enough: function of the groups so far, for servers only. Once it returns true, the other groups are
            cancelled, and None takes their place.
    """
    rank, world_size = _rank_and_world_size()
    engine, generation = pending.engine, pending.generation
    found: dict[int, RolloutGroup] = {}
    while True:
        has_weights = True
        try:
            while generation is not None and (completed := generation.wait()):
                indices = [index for index, _ in completed]
                found.update(zip(indices, score([group for _, group in completed]), strict=True))
                if not engine.replicated and is_enough(list(found.values())):
                    generation.cancel()
                    break
        except NeedsWeights:
            has_weights = False
        if engine.replicated or agree.broadcast_from_rank_0(has_weights):
            break
        sync()
    if engine.replicated:  # by index, not by id: a stream that begins a new epoch may draw a prompt twice
        found = {rank + index * world_size: group for index, group in found.items()}
        if rank:
            exchange([([0], found)], [])
        else:
            found |= {index: group for share in exchange([], range(1, world_size)) for index, group in share.items()}
    indices, outlines = agree.broadcast_from_rank_0((list(found), outline(list(found.values()))))
    if rank:
        found = dict(zip(indices, outlines, strict=True))
    return [found.get(index) for index in range(len(pending.prompts))]


def collect(
    engine: RolloutEngine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    group_size: int,
    seed: int,
    sync: Callable[[], None],
    environment: Environment | None = None,
    on_groups: Callable[[Sequence[RolloutGroup]], None] = lambda groups: None,
) -> list[RolloutGroup]:
    """Generates and scores `group_size` responses to each prompt.

    Args:
        sync: collective that sends the policy's weights to the engine again.
        on_groups: callback for scored groups as they complete, once per group, on the process that received them from
            the engine.

    Returns:
        The groups in the order of the prompts, whole on rank 0 and as outlines on all other processes.
    """

    def scored(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        found = score(reward, groups)
        on_groups(found)
        return found

    pending = start_generation(engine, prompts, sampling, group_size=group_size, seed=seed, environment=environment)
    groups = gather_groups(pending, scored, sync=sync)
    return [group for group in groups if group is not None]


def score(reward: Reward, groups: Sequence[RolloutGroup], overlong: Overlong | None = None) -> list[RolloutGroup]:
    """Returns the groups with the parts of each reward filled in.

    Args:
        overlong: penalty for overlong responses, to be added; None adds none.

    Raises:
        UserError: a reward is not a finite number; the message names the prompt.
    """
    prompts = [group.prompt for group in groups for _ in group.rollouts]
    parts = iter(checked_score(reward, prompts, [rollout.text for group in groups for rollout in group.rollouts]))

    def scored(group: RolloutGroup) -> RolloutGroup:
        return replace(group, rollouts=[replace(r, reward_parts=next(parts)) for r in group.rollouts])

    found = [scored(group) for group in groups]
    return found if overlong is None else [overlong.add(group) for group in found]


def with_advantages(groups: Sequence[RolloutGroup], estimator: str) -> list[RolloutGroup]:
    """Returns the groups with Â_i filled in.

    Args:
        estimator: name of a function of `megatron_sspo.objective.advantages`, or `package.module:attribute`. The
            function maps the rewards [G] of a group to its advantages [G].
    """
    function = resolve_advantage(estimator)

    def filled(group: RolloutGroup) -> RolloutGroup:
        values = function(torch.tensor([rollout.reward for rollout in group.rollouts], dtype=torch.float64)).tolist()
        return replace(group, rollouts=[replace(r, advantage=a) for r, a in zip(group.rollouts, values, strict=True)])

    return [filled(group) for group in groups]


def check_advantage(name: str, group_size: int) -> None:
    """Calls an advantage function with a group of rewards and checks the result.

    Raises:
        UserError: there is no such function, it raises, or it does not return one finite number per reward.
    """
    function, what = resolve_advantage(name), f"the advantage {name!r}"
    if not callable(function):
        raise UserError(f"{what} is {describe_value(function)}, and must be a function")
    rewards = torch.linspace(0, 1, group_size, dtype=torch.float64)
    try:
        with user_code_errors(what, always=True):
            found = function(rewards)
    except UserError as error:
        raise UserError(f"{what} cannot be computed for {group_size} rewards: {error}") from error
    if not isinstance(found, torch.Tensor) or found.shape != rewards.shape or not found.isfinite().all():
        raise UserError(
            f"{what} returned {describe_value(found)} for {group_size} rewards: it must be a tensor of as many finite "
            "numbers"
        )


def resolve_advantage(name: str) -> Any:
    """Returns the advantage function of that name. Raises UserError if there is none."""
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


def _rank_and_world_size() -> tuple[int, int]:
    """Returns (rank, world size)."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
