"""Makes groups of one response from the demonstrations of prompts, for supervised updates."""

from typing import Any

import numpy as np

from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt, Rollout, RolloutGroup


def demonstration(prompt: Prompt, tokenizer: Any, max_tokens: int | None = None) -> RolloutGroup:
    """Returns a prompt and its demonstration as a group of one response, which ends with the end-of-sequence token.

    Raises UserError if the prompt has no demonstration, the tokenizer has no end-of-sequence token, or both together
    are longer than `max_tokens`.
    """
    if not prompt.demonstration:
        raise UserError(
            f"prompt {prompt.id} has no demonstration to warm-start from: give its row one, or drop warm_start"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"the tokenizer {tokenizer.name_or_path!r} has no eos_token, with which a demonstration ends: name it in "
            "tokenizer_config.json, or drop warm_start"
        )
    text = prompt.demonstration
    for opened in (prompt.prefill, prompt.prefill.rstrip()):  # which the prompt has already
        text = text.removeprefix(opened)
    tokens = (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
    length = len(prompt.tokens) + len(tokens)
    if max_tokens is not None and length > max_tokens:
        raise UserError(
            f"prompt {prompt.id} and its demonstration have {length} tokens, more than tokens_per_microbatch="
            f"{max_tokens}: raise that, or drop the row"
        )
    rollout = Rollout(
        tokens=np.array(tokens),
        rollout_log_probs=np.zeros(len(tokens)),  # the demonstration was not sampled
        text=prompt.demonstration,
        finish_reason="stop",
        policy_version=0,
    )
    return RolloutGroup(prompt=prompt, rollouts=[rollout])
