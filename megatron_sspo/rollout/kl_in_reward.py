"""The KL to the reference policy as a part of the reward."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from megatron_sspo.batching.holders import outline, with_rollouts
from megatron_sspo.errors import UserError
from megatron_sspo.processes import agree
from megatron_sspo.types import Rollout, RolloutGroup, rollouts_of

PART = "kl"


def with_kl(groups: Sequence[RolloutGroup], coef: float) -> list[RolloutGroup]:
    """Returns the groups with the part "kl" in every reward: −coef · Σ_t (log π_old − log π_ref). A collective.

    The sum is over the tokens that the policy sampled; it is the estimate k1 of KL(π_old ‖ π_ref) of the response.

    Args:
        groups: groups with both log-probs, whole on rank 0.

    Returns:
        The groups, whole on rank 0 and as outlines on all other ranks.

    Raises:
        UserError: a reward has a part of that name already.
    """
    rollouts = rollouts_of(groups)
    if any(PART in rollout.reward_parts for rollout in rollouts):
        raise UserError(
            f"the reward has a part {PART!r}, and kl_in_reward, which is above 0, adds one of that name: give the part "
            "another name, or set kl_in_reward to 0"
        )
    sums = agree.run_on_rank_0(lambda: [*map(_log_ratio, rollouts)])
    parts = [{**r.reward_parts, PART: coef * found} for r, found in zip(rollouts, sums, strict=True)]
    changed = [replace(rollout, reward_parts=part) for rollout, part in zip(rollouts, parts, strict=True)]
    groups = with_rollouts(groups, changed)
    return groups if agree.is_main() else outline(groups)


def _log_ratio(rollout: Rollout) -> float:
    """Returns Σ_t (log π_ref − log π_old), in float64; both are 0 at tokens of an environment."""
    assert rollout.old_log_probs is not None and rollout.reference_log_probs is not None
    return float(np.subtract(rollout.reference_log_probs, rollout.old_log_probs, dtype=np.float64).sum())
