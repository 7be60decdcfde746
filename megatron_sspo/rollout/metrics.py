"""Computes the numbers of rewards, lengths and staleness in metrics.jsonl, and adds those of plug-ins."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from megatron_sspo.config.user_code import metrics_of
from megatron_sspo.errors import UserError
from megatron_sspo.types import RolloutGroup, rollouts_of


def reward_metrics(
    groups: Sequence[RolloutGroup], *, policy_version: int, sets: Iterable[str] = ()
) -> dict[str, float]:
    """Returns means over the responses, and the share of groups with equal rewards, see `has_equal_rewards`.

    Means of rewards are over episodes: an episode with several branches counts once, and the mean of a part is over
    those that have it. A response is empty if its last turn has no text, as one that is an end token alone; only rank 0
    has the texts.

    Args:
        sets: the sets of a mixture, with whose names the ids of their prompts begin.
    """
    rollouts = rollouts_of(groups)
    rewarded = [rollouts[0] for group in groups for rollouts in group.episodes]
    parts = sorted({name for rollout in rollouts for name in rollout.reward_parts})
    lengths = torch.tensor([float(rollout.num_response_tokens) for rollout in rollouts])
    observed = [len(rollout.tokens) - rollout.num_response_tokens for rollout in rollouts]
    equal = [group.has_equal_rewards for group in groups]
    return {
        "reward/mean": _mean([rollout.reward for rollout in rewarded]),
        **{
            f"reward/{part}": _mean([each.reward_parts[part] for each in rewarded if part in each.reward_parts])
            for part in parts
        },
        **{f"reward/mean/{name}": _mean(found) for name in sets if (found := _rewards_of(f"{name}/", groups))},
        "reward/zero_variance_groups": _mean(equal),
        "response/tokens_mean": float(lengths.mean()),
        "response/tokens_max": float(lengths.max()),
        "response/truncated": _mean([rollout.finish_reason == "length" for rollout in rollouts]),
        "response/empty": _mean([not rollout.text.strip() for rollout in rollouts]),
        "response/turns_mean": _mean([rollout.num_turns for rollout in rollouts]),
        "response/observed_tokens_mean": _mean(observed),
        "rollout/staleness": sum(r.staleness(policy_version) * r.num_response_tokens for r in rollouts)
        / max(1, sum(r.num_response_tokens for r in rollouts)),
        "rollout/staleness_max": float(max(policy_version - rollout.policy_version for rollout in rollouts)),
    }


def plugin_metrics(row: Mapping[str, float], parts: Sequence[tuple[Any, str, str]]) -> dict[str, float]:
    """Returns the numbers of plug-ins' `metrics`.

    Args:
        row: the run's own numbers, none of which a plug-in may replace.
        parts: for each plug-in its object, its kind for messages ("the reward"), and the beginning of its names.

    Raises:
        UserError: `metrics` raises, does not return numbers by name, or has a name that is in use already.
    """
    found: dict[str, float] = {}
    for part, what, prefix in parts:
        given = metrics_of(part, what, prefix=prefix)
        if twice := next((name for name in given if name in row or name in found), None):
            raise UserError(
                f"{what}'s metrics returned {twice.removeprefix(prefix)!r}, and the run has a number {twice} already: "
                "give it another name"
            )
        found |= given
    return found


def _rewards_of(prefix: str, groups: Sequence[RolloutGroup]) -> list[float]:
    return [each[0].reward for group in groups if group.prompt.id.startswith(prefix) for each in group.episodes]


def _mean(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).mean()) if values else 0.0
