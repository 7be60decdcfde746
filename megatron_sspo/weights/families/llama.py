"""Llama and models with its architecture: Llama 2, 3, 3.1 to 3.3, SmolLM."""

from typing import Any

from megatron_sspo.weights.family import (
    PLAIN_DECODER,
    Config,
    Family,
    attention_rows,
    decoder_fields,
    decoder_rows,
    embedding_fields,
    gated_mlp_rows,
    require,
    require_rope,
    rope,
)
from megatron_sspo.weights.table import Row

# The scaling of Llama 3.1: Megatron takes the factor, the rest is written into its RotaryEmbedding.
_LLAMA3 = {
    "rope_type": ("llama3",),
    "low_freq_factor": (1,),
    "high_freq_factor": (4,),
    "original_max_position_embeddings": (8192,),
}


def check(config: Config) -> None:
    """Refuses what Megatron would compute otherwise."""
    require(config, {**PLAIN_DECODER, "mlp_bias": (False, None)})
    require_rope(config, _LLAMA3 if _is_llama3(config) else {"rope_type": ("default", "llama3")})


def transformer_fields(config: Config) -> dict[str, Any]:
    """Arguments of TransformerConfig."""
    return {**decoder_fields(config), "qk_layernorm": False}


def model_fields(config: Config) -> dict[str, Any]:
    """Arguments of GPTModel."""
    scaling = {"rope_scaling": True, "rope_scaling_factor": rope(config)["factor"]} if _is_llama3(config) else {}
    return {**embedding_fields(config), **scaling}


def rows(config: Config, padded_vocab_size: int) -> list[Row]:
    """One row per parameter of the model."""
    return decoder_rows(config, padded_vocab_size, _layer_rows)


def _layer_rows(config: Config, layer: int) -> list[Row]:
    return [*attention_rows(config, layer), *gated_mlp_rows(config, layer)]


def _is_llama3(config: Config) -> bool:
    return rope(config)["rope_type"] == "llama3"


family = Family(
    architectures=("LlamaForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=model_fields,
    rows=rows,
)
