"""Qwen3 dense models, 0.6B to 32B."""

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
)
from megatron_sspo.weights.table import Row


def check(config: Config) -> None:
    """Refuses what Megatron would compute otherwise."""
    require(config, {**PLAIN_DECODER, "use_sliding_window": (False, None)})
    require_rope(config, {"rope_type": ("default",)})


def transformer_fields(config: Config) -> dict[str, Any]:
    """Arguments of TransformerConfig."""
    return {**decoder_fields(config), "qk_layernorm": True}


def rows(config: Config, padded_vocab_size: int) -> list[Row]:
    """One row per parameter of the model."""
    return decoder_rows(config, padded_vocab_size, _layer_rows)


def _layer_rows(config: Config, layer: int) -> list[Row]:
    return [*attention_rows(config, layer, qk_layernorm=True), *gated_mlp_rows(config, layer)]


family = Family(
    architectures=("Qwen3ForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=embedding_fields,
    rows=rows,
)
