"""Tests that prompts fit their model."""

import pytest

from megatron_sspo.data.fit import check_prompts_fit
from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt

SIZES = {"max_position_embeddings": 4, "vocab_size": 10}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ((1, 2, 3, 4), "prompt a has 4 tokens and the model 4 positions .*: lower prompts.max_tokens"),
        ((1, 10), "prompt a has the token 10, and the model's vocabulary 10 tokens .*: copy the tokenizer"),
    ],
)
def test_a_prompt_that_does_not_fit_is_named(tokens: tuple[int, ...], message: str) -> None:
    check_prompts_fit([Prompt(id="b", tokens=(1, 2, 9), answer="")], SIZES)  # which leaves room for one token
    with pytest.raises(UserError, match=message):
        check_prompts_fit([Prompt(id="a", tokens=tokens, answer="")], SIZES)
