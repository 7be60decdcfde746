"""Mixtral: 8x7B, 8x22B."""

from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.weights.family import (
    PLAIN_DECODER,
    Config,
    Family,
    attention_rows,
    decoder_fields,
    decoder_rows,
    embedding_fields,
    require,
    require_rope,
    size,
)
from megatron_sspo.weights.table import Row, gate_up, row_parallel, whole


def check(config: Config) -> None:
    """Refuses what Megatron would compute otherwise."""
    require(config, {**PLAIN_DECODER, "sliding_window": (None,), "router_jitter_noise": (0, None)})
    require_rope(config, {"rope_type": ("default",)})
    if size(config, "num_experts_per_tok") == 1:
        raise UserError(
            "config.json has num_experts_per_tok 1, which is not supported: every expert's weight would be 1, and the "
            "router would get no gradient"
        )


def transformer_fields(config: Config) -> dict[str, Any]:
    """Arguments of TransformerConfig."""
    return {
        **decoder_fields(config),
        "qk_layernorm": False,
        "num_moe_experts": size(config, "num_local_experts"),
        "moe_ffn_hidden_size": size(config, "intermediate_size"),
        "moe_layer_freq": 1,
        "moe_router_topk": size(config, "num_experts_per_tok"),
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": False,  # a softmax over the top-k logits
    }


def rows(config: Config, padded_vocab_size: int) -> list[Row]:
    """One row per parameter of the model."""
    return decoder_rows(config, padded_vocab_size, _layer_rows)


def _layer_rows(config: Config, layer: int) -> list[Row]:
    num_experts, hidden, width = (
        size(config, name) for name in ("num_local_experts", "hidden_size", "intermediate_size")
    )
    megatron, hf = f"decoder.layers.{layer}.mlp", f"model.layers.{layer}.block_sparse_moe"
    found = attention_rows(config, layer)
    found.append(whole(f"{megatron}.router.weight", f"{hf}.gate.weight", (num_experts, hidden)))
    for e in range(num_experts):
        expert, source = f"{megatron}.experts.{e}", f"{hf}.experts.{e}"
        found += [
            gate_up(
                f"{expert}.linear_fc1.weight",
                (f"{source}.w1.weight", f"{source}.w3.weight"),
                (width, hidden),
                "intermediate_size",
                "expert_tensor",
            ),
            row_parallel(
                f"{expert}.linear_fc2.weight",
                f"{source}.w2.weight",
                (hidden, width),
                "intermediate_size",
                "expert_tensor",
            ),
        ]
    return found


family = Family(
    architectures=("MixtralForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=embedding_fields,
    rows=rows,
)
