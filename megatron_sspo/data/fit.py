"""Checks that tokenized prompts fit the model that reads them."""

from collections.abc import Iterable, Mapping
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt
from megatron_sspo.weights.family import size


def check_prompts_fit(prompts: Iterable[Prompt], config: Mapping[str, Any]) -> None:
    """Raises UserError if a prompt leaves no room for a response in the model of a config.json, or has other tokens."""
    num_positions = size(config, "max_position_embeddings")
    for prompt in prompts:
        if len(prompt.tokens) >= num_positions:
            raise UserError(
                f"prompt {prompt.id} has {len(prompt.tokens)} tokens and the model {num_positions} positions "
                "(max_position_embeddings), which leaves no room for a response: lower prompts.max_tokens, and set "
                "prompts.overlong to drop"
            )
        check_vocabulary(prompt.id, prompt.tokens, config)


def check_vocabulary(id: str, tokens: Iterable[int], config: Mapping[str, Any]) -> None:
    """Raises UserError if a prompt or demonstration has a token that the model lacks."""
    if (largest := max(tokens)) >= (vocab_size := size(config, "vocab_size")):
        raise UserError(
            f"prompt {id} has the token {largest}, and the model's vocabulary {vocab_size} tokens (vocab_size): copy "
            "the tokenizer that belongs to the model into its folder"
        )
