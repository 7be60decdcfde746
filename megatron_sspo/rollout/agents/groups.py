"""Makes groups of rollouts from the episodes of an agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from megatron_sspo.arrays.convert import log_prob_array, token_array
from megatron_sspo.rollout.agents.tree import Trajectory
from megatron_sspo.types import Prompt, Rollout, RolloutGroup


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The conversations of an episode that has ended, and its reward."""

    trajectories: Sequence[Trajectory]
    reward: Mapping[str, float]  # {}: the run's reward scores it
    text: str  # of the last turn
    has_failed: bool = False  # whether it raised or was late


def make_group(
    prompt: Prompt, episodes: Sequence[EpisodeResult], tokenizer: Any, *, policy_version: int
) -> RolloutGroup:
    """Returns the rollouts of the episodes of one prompt, in order.

    The prompt of the group is the longest common beginning of its conversations. The rest of each conversation's own
    prompt becomes observed tokens.
    """
    firsts = [trajectory.prompt for episode in episodes for trajectory in episode.trajectories]
    common = _common_prefix(firsts) if firsts else prompt.tokens
    rollouts: list[Rollout] = []
    for episode in episodes:
        found = [_joined(trajectory, len(common)) for trajectory in episode.trajectories]
        for trajectory in found or [Trajectory(common)]:
            versions = [version for version, _ in trajectory.spans]
            rollouts.append(
                Rollout(
                    tokens=token_array(trajectory.tokens),
                    rollout_log_probs=log_prob_array(trajectory.log_probs),
                    text=episode.text,
                    finish_reason=trajectory.finish_reason,
                    policy_version=min(versions, default=policy_version),
                    version_spans=tuple(trajectory.spans) if len(versions) > 1 else (),
                    reward_parts=episode.reward,
                    routes=trajectory.routes,
                    observed=tuple(trajectory.observed),
                    transcript=str(tokenizer.decode(trajectory.tokens)) if trajectory.observed else "",
                    branches=max(1, len(found)),
                )
            )
    return RolloutGroup(prompt=replace(prompt, tokens=tuple(common)), rollouts=rollouts)


def _joined(trajectory: Trajectory, num_shared: int) -> Trajectory:
    """Returns the trajectory with its prompt after the first `num_shared` tokens moved to the observed tokens."""
    own = list(trajectory.prompt[num_shared:])
    observed = [(first + len(own), beyond + len(own)) for first, beyond in trajectory.observed]
    if own and observed and observed[0][0] == len(own):  # the path begins with a turn of another branch
        observed[0] = (0, observed[0][1])
    elif own:
        observed.insert(0, (0, len(own)))
    return replace(
        trajectory,
        prompt=trajectory.prompt[:num_shared],
        tokens=own + trajectory.tokens,
        log_probs=[0.0] * len(own) + trajectory.log_probs,
        observed=observed,
    )


def _common_prefix(sequences: Sequence[Sequence[int]]) -> Sequence[int]:
    for place, tokens in enumerate(zip(*sequences, strict=False)):
        if len(set(tokens)) > 1:
            return sequences[0][:place]
    return min(sequences, key=len)
