"""Distributes prompts over the processes, and gathers the scored responses."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch.distributed as dist

from megatron_sspo.batching.holders import outline
from megatron_sspo.processes import agree
from megatron_sspo.processes.exchange import exchange
from megatron_sspo.reward.overlong import Overlong
from megatron_sspo.reward.protocol import Reward, checked_score
from megatron_sspo.rollout.engine import Episodes, Generation, NeedsWeights, RolloutEngine
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling


@dataclass(frozen=True)
class PendingGeneration:
    """A generation in progress. The prompts are the same on every process."""

    engine: RolloutEngine
    prompts: Sequence[Prompt]
    generation: Generation | None  # None: rank 0 drives servers, and this is another rank

    def cancel(self) -> None:
        """Cancels the groups that have not been returned."""
        if self.generation is not None:
            self.generation.cancel()


def start_generation(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    group_size: int,
    seed: int,
    environment: Episodes | None = None,
) -> PendingGeneration:
    """Begins `group_size` responses to each prompt. Without an environment a response is a single turn.

    A replicated engine answers its process's share of the prompts; servers are driven by rank 0. The seed and the
    prompt alone determine a response of a replicated engine, so the split into shares does not matter.
    """
    rank, world_size = _rank_and_world_size()
    if not engine.replicated and rank != 0:
        return PendingGeneration(engine, prompts, None)
    mine = _with_draws(prompts)[rank::world_size] if engine.replicated else prompts
    if environment is not None:
        sampling = replace(sampling, stop=tuple(dict.fromkeys((*sampling.stop, *environment.stop))))
    generation = engine.start(mine, sampling, group_size=group_size, seed=seed, environment=environment)
    return PendingGeneration(engine, prompts, generation)


def _with_draws(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Returns the prompts with their `draw`, by which one that comes twice has other responses each time."""
    count: Counter[str] = Counter()
    found = []
    for prompt in prompts:
        found.append(replace(prompt, draw=count[prompt.id]))
        count[prompt.id] += 1
    return found


def gather_groups(
    pending: PendingGeneration,
    score: Callable[[Sequence[RolloutGroup]], list[RolloutGroup]],
    *,
    sync: Callable[[], None],
    is_enough: Callable[[Sequence[RolloutGroup]], bool] = lambda groups: False,
) -> list[RolloutGroup | None]:
    """Waits for the groups and returns them scored, in the order of the prompts.

    Rank 0 has whole groups, and all other processes have their outlines.

    Args:
        score: function that fills in rewards; it is called while other responses are still being generated.
        sync: collective that sends the policy's weights to the engine again.
        is_enough: function of the groups so far, for servers only. Once it returns true, the other groups are
            cancelled, and None takes their place.
    """
    found: dict[int, RolloutGroup] = {}
    while True:
        needs_weights = _score_completed(pending, score, is_enough, found)
        if pending.engine.replicated or not agree.broadcast_from_rank_0(needs_weights):
            break
        sync()
    if pending.engine.replicated:
        found = _bring_to_rank_0(found)
    indices, outlines = agree.broadcast_from_rank_0((list(found), outline(list(found.values()))))
    if _rank_and_world_size()[0]:
        found = dict(zip(indices, outlines, strict=True))
    return [found.get(index) for index in range(len(pending.prompts))]


def collect(
    pending: PendingGeneration,
    reward: Reward,
    *,
    sync: Callable[[], None],
    on_groups: Callable[[Sequence[RolloutGroup]], None] = lambda groups: None,
) -> list[RolloutGroup]:
    """Waits for all groups of a generation and scores them, as `gather_groups`.

    Args:
        on_groups: callback for scored groups as they complete, on the process that received them from the engine.
    """

    def scored(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        found = score(reward, groups)
        on_groups(found)
        return found

    return [group for group in gather_groups(pending, scored, sync=sync) if group is not None]


def score(reward: Reward, groups: Sequence[RolloutGroup], overlong: Overlong | None = None) -> list[RolloutGroup]:
    """Returns the groups with the parts of each reward filled in; rewards that an agent gave are kept.

    An episode is scored once, by the text of its first rollout; all of its rollouts have the text of its last turn.

    Raises:
        UserError: a reward is not a finite number; the message names the prompt.
    """
    pairs = [(g.prompt, rollouts[0].text) for g in groups for rollouts in g.episodes if not rollouts[0].reward_parts]
    parts = iter(checked_score(reward, [prompt for prompt, _ in pairs], [text for _, text in pairs]))

    def scored(group: RolloutGroup) -> RolloutGroup:
        found: list[Rollout] = []
        for rollouts in group.episodes:
            of_episode = rollouts[0].reward_parts or next(parts)
            found += [replace(rollout, reward_parts=of_episode) for rollout in rollouts]
        return replace(group, rollouts=found)

    found = [scored(group) for group in groups]
    return found if overlong is None else [overlong.add(group) for group in found]


def _score_completed(
    pending: PendingGeneration,
    score: Callable[[Sequence[RolloutGroup]], list[RolloutGroup]],
    is_enough: Callable[[Sequence[RolloutGroup]], bool],
    scored: dict[int, RolloutGroup],
) -> bool:
    """Adds groups to `scored` as they complete. Returns whether the engine needs the weights again to go on."""
    generation = pending.generation
    if generation is None:
        return False
    try:
        while completed := generation.wait():
            indices = [index for index, _ in completed]
            scored.update(zip(indices, score([group for _, group in completed]), strict=True))
            if not pending.engine.replicated and is_enough(list(scored.values())):
                generation.cancel()
                break
    except NeedsWeights:
        return True
    return False


def _bring_to_rank_0(share: Mapping[int, RolloutGroup]) -> dict[int, RolloutGroup]:
    """Sends the groups of this rank's share to rank 0. Returns them by index; on rank 0, the groups of all ranks.

    The keys are indices, not ids, because a stream that begins a new epoch may draw a prompt twice.
    """
    rank, world_size = _rank_and_world_size()
    found = {rank + index * world_size: group for index, group in share.items()}
    if rank:
        exchange([([0], found)], [])
        return found
    return found | {index: group for other in exchange([], range(1, world_size)) for index, group in other.items()}


def _rank_and_world_size() -> tuple[int, int]:
    """Returns (rank, world size); a process without a process group is the only rank."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
