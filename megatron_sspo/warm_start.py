"""Supervised learning on demonstrations, with the same policy, schedule and packing as the later updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.metrics import UpdateRecord
from megatron_sspo.objective.supervised import Supervised
from megatron_sspo.run import WarmStart
from megatron_sspo.types import Prompt, Rollout, RolloutGroup

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


def demonstration(prompt: Prompt, tokenizer: Any, max_tokens: int | None = None) -> RolloutGroup:
    """Returns a prompt and its demonstration as a group of one response, which ends with the end-of-sequence token.

    Raises:
        UserError: the prompt has no demonstration, or both together are longer than `max_tokens`.
    """
    if not prompt.demonstration:
        raise UserError(
            f"prompt {prompt.id} has no demonstration to warm-start from: give its row one, or drop warm_start"
        )
    tokens = (*tokenizer(prompt.demonstration, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
    length = len(prompt.tokens) + len(tokens)
    if max_tokens is not None and length > max_tokens:
        raise UserError(
            f"prompt {prompt.id} and its demonstration have {length} tokens, more than tokens_per_microbatch="
            f"{max_tokens}: raise that, or drop the row"
        )
    rollout = Rollout(
        tokens=tokens,
        rollout_log_probs=(0.0,) * len(tokens),  # the demonstration was not sampled
        text=prompt.demonstration,
        finish_reason="stop",
        policy_version=0,
    )
    return RolloutGroup(prompt=prompt, rollouts=[rollout])
