"""Tiny models in Hugging Face folders, made with Transformers' own classes, and prompts for them."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
)

from megatron_sspo.types import Prompt
from packages.agents.tests import endpoints
from packages.agents.tests.endpoints import CHARACTERS, EOS, PAD

VOCAB_SIZE = 2 + len(CHARACTERS)
SHAPES = ("qwen3_moe", "llama_tied", "llama_untied")


def tokenizer() -> PreTrainedTokenizerFast:
    """Builds a tokenizer: a padding token, an end-of-sequence token, and one token per character."""
    found = endpoints.tokenizer()
    found.chat_template = None
    return found


def config(shape: str) -> PreTrainedConfig:
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "initializer_range": 0.15,  # large, so that a misplaced weight changes the output
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    if shape == "qwen3_moe":
        return Qwen3MoeConfig(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True, **sizes
        )
    if shape == "glm4_moe":  # one layer without experts, one with
        return Glm4MoeConfig(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, **sizes)
    if shape == "gpt_oss":  # a window of fewer tokens than responses have
        return GptOssConfig(num_local_experts=4, num_experts_per_tok=2, sliding_window=6, **sizes)
    return LlamaConfig(tie_word_embeddings=shape == "llama_tied", **sizes)


def build(folder: Path, shape: str, seed: int = 0) -> Path:
    """Saves a random model and the tokenizer to a folder named after the shape."""
    torch.manual_seed(seed)
    path = folder / f"{shape}-{seed}"
    AutoModelForCausalLM.from_config(config(shape)).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def reference(path: Path) -> PreTrainedModel:
    """Returns the model as Transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors on disk."""
    return load_file(path / "model.safetensors")


def prompt(text: str, id: str | None = None) -> Prompt:
    return Prompt(id=id or text, tokens=tuple(tokenizer().encode(text)), answer="")
