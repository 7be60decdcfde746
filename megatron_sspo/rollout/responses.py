"""Makes rollouts of the tokens that were sampled."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from megatron_sspo.arrays.convert import log_prob_array, token_array
from megatron_sspo.types import FinishReason, Rollout, join_spans


def make_rollout(
    tokens: Sequence[int],
    log_probs: Sequence[float],
    spans: Sequence[tuple[int, int]],
    *,
    text: str,
    finish_reason: FinishReason,
    observed: Sequence[tuple[int, int]],
    tokenizer: Any,
    routes: np.ndarray | None = None,
    policy_version: int = 0,
    **more: Any,
) -> Rollout:
    """Returns a rollout.

    Args:
        spans: (policy version, number of tokens that it sampled), in order.
        policy_version: the version if nothing was sampled.
        more: further fields of `Rollout`.
    """
    joined = join_spans(spans)
    return Rollout(
        tokens=token_array(tokens),
        rollout_log_probs=log_prob_array(log_probs),
        text=text,
        finish_reason=finish_reason,
        policy_version=min((version for version, _ in joined), default=policy_version),
        version_spans=tuple(joined) if len(joined) > 1 else (),
        routes=routes,
        observed=tuple(observed),
        transcript=str(tokenizer.decode(list(tokens))) if observed else "",
        **more,
    )
