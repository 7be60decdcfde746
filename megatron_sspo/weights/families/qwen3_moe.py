"""Qwen3 mixture-of-experts models: Qwen3-30B-A3B, Qwen3-235B-A22B."""

from functools import partial
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.weights.decoder import (
    Attention,
    decoder_fields,
    embedding_fields,
    expert_fields,
    moe_rows,
    require_decoder,
)
from megatron_sspo.weights.family import Config, ExpertNames, Family, flag, size

_ATTENTION = Attention(qk_layernorm=True, default_groups=4)
_UNIFORM = {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)}  # every layer must be a mixture of experts
_EXPERTS = ExpertNames(
    router="mlp.gate",
    gate="mlp.experts.{e}.gate_proj",
    up="mlp.experts.{e}.up_proj",
    down="mlp.experts.{e}.down_proj",
)


def check(config: Config) -> None:
    """Refuses settings that Megatron would compute differently."""
    require_decoder(config, _UNIFORM, windows="in all layers")
    if size(config, "num_experts_per_tok") == 1 and flag(config, "norm_topk_prob"):
        raise UserError(
            "config.json has norm_topk_prob True with num_experts_per_tok 1, which is not supported: "
            "every expert's weight would be 1, and the router would get no gradient"
        )


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    # Transformers takes the softmax over all experts; with norm_topk_prob it also divides by the sum over the top k.
    # Without the division this is Megatron's softmax before top-k, with it Megatron's softmax over the top-k logits.
    pre_softmax = not flag(config, "norm_topk_prob")
    experts = expert_fields(config, width_field="moe_intermediate_size", pre_softmax=pre_softmax)
    return {**decoder_fields(config, attention=_ATTENTION), **experts}


family = Family(
    architectures=("Qwen3MoeForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=embedding_fields,
    rows=partial(moe_rows, names=_EXPERTS, width_field="moe_intermediate_size", attention=_ATTENTION),
    expert_names=_EXPERTS,
)
