"""The task of `examples/trl_sspo.py` and `examples/verl_sspo.py`: a model of 22,000 weights learns to write sevens.

The reward is the share of sevens in what the model writes. A model with random weights begins near 0.02.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

PROMPTS = ("1+2=", "30+4=", "5+66=", "7+8=")


def share_of_sevens(text: str) -> float:
    """Returns the reward of a text."""
    return text.count("7") / max(len(text), 1)


def tiny_tokenizer() -> Any:
    """Returns the tokenizer of the quickstart, one token a character."""
    return AutoTokenizer.from_pretrained(Path(__file__).parent / "tiny_moe")


def tiny_model(tokenizer: Any) -> Qwen3ForCausalLM:
    """Returns a Qwen3 of 22,000 random weights, the same ones each time."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)
