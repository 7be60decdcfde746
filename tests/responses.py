"""Responses for tests, with values for what a test does not name."""

from collections.abc import Sequence
from typing import Any

from megatron_sspo.types import Rollout


def response(tokens: Sequence[int], **more: Any) -> Rollout:
    """Returns a rollout of these tokens; all that is not given is as of a response that has ended by itself."""
    usual = {"rollout_log_probs": (0.0,) * len(tokens), "text": "", "finish_reason": "stop", "policy_version": 0}
    return Rollout(tokens=tokens, **(usual | more))  # pyright: ignore
