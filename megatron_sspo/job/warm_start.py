"""Supervised learning on demonstrations, with the same policy, schedule and packing as the later updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatron_sspo.data.demonstration import demonstration
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.objective.supervised import Supervised
from megatron_sspo.policy.metrics import UpdateRecord
from megatron_sspo.run import WarmStart

if TYPE_CHECKING:
    from megatron_sspo.policy.policy import Policy


def warm_start(
    policy: Policy,
    options: WarmStart,
    prompts: PromptStream,
    tokenizer: Any,
    report: Callable[[int, UpdateRecord], None],
) -> None:
    """Maximizes the likelihood of the prompts' demonstrations for `options.updates` steps.

    Args:
        report: a function called after each step with its number, from 1, and its record.
    """
    policy.set_optimizer(options.optimizer, options.updates)
    for number in range(1, options.updates + 1):
        batch = [demonstration(prompt, tokenizer) for prompt in prompts.take(options.batch_size)]
        report(number, policy.update(batch, Supervised()))
