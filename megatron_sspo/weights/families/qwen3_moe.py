"""Qwen3 mixture-of-experts models: Qwen3-30B-A3B, Qwen3-235B-A22B."""

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
    require(config, PLAIN_DECODER)
    # Every layer must be a mixture of experts with full attention.
    require(config, {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None), "use_sliding_window": (False, None)})
    require_rope(config, {"rope_type": ("default",)})
    if size(config, "num_experts_per_tok") == 1 and config.get("norm_topk_prob", False):
        raise UserError(
            "config.json has norm_topk_prob True with num_experts_per_tok 1, which is not supported: "
            "every expert's weight would be 1, and the router would get no gradient"
        )


def transformer_fields(config: Config) -> dict[str, Any]:
    """Arguments of TransformerConfig."""
    return {
        **decoder_fields(config),
        "qk_layernorm": True,
        "num_moe_experts": _num_experts(config),
        "moe_ffn_hidden_size": size(config, "moe_intermediate_size"),
        "moe_layer_freq": 1,
        "moe_router_topk": size(config, "num_experts_per_tok"),
        "moe_router_score_function": "softmax",
        # Transformers takes the softmax over all experts, and with norm_topk_prob divides by the sum over the chosen k.
        # The first alone is Megatron's softmax before top-k; both together are its softmax over the top-k logits.
        "moe_router_pre_softmax": not config.get("norm_topk_prob", False),
    }


def model_fields(config: Config) -> dict[str, Any]:
    """Arguments of GPTModel."""
    return embedding_fields(config)


def rows(config: Config, padded_vocab_size: int) -> list[Row]:
    """One row per parameter of the model."""
    return decoder_rows(config, padded_vocab_size, _layer_rows)


def _layer_rows(config: Config, layer: int) -> list[Row]:
    num_experts, hidden, width = (
        _num_experts(config),
        size(config, "hidden_size"),
        size(config, "moe_intermediate_size"),
    )
    megatron, hf = f"decoder.layers.{layer}.mlp", f"model.layers.{layer}.mlp"
    found = attention_rows(config, layer, qk_layernorm=True)
    found.append(whole(f"{megatron}.router.weight", f"{hf}.gate.weight", (num_experts, hidden)))
    for e in range(num_experts):
        found.append(
            gate_up(
                f"{megatron}.experts.{e}.linear_fc1.weight",
                (f"{hf}.experts.{e}.gate_proj.weight", f"{hf}.experts.{e}.up_proj.weight"),
                (width, hidden),
                "moe_intermediate_size",
                "expert_tensor",
            )
        )
        found.append(
            row_parallel(
                f"{megatron}.experts.{e}.linear_fc2.weight",
                f"{hf}.experts.{e}.down_proj.weight",
                (hidden, width),
                "moe_intermediate_size",
                "expert_tensor",
            )
        )
    return found


def _num_experts(config: Config) -> int:
    return size(config, "num_experts", "num_local_experts")  # Transformers 5 writes the second


family = Family(
    architectures=("Qwen3MoeForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=model_fields,
    rows=rows,
)
