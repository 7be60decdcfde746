"""Qwen3 mixture-of-experts models: Qwen3-30B-A3B, Qwen3-235B-A22B."""

from functools import partial
from typing import Any

from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import Config, ExpertNames, Family, flag

_ATTENTION = decoder.Attention(qk_layernorm=True, default_groups=4)
_UNIFORM = {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)}  # every layer must be a mixture of experts
_EXPERTS = ExpertNames(
    router="mlp.gate",
    gate="mlp.experts.{e}.gate_proj",
    up="mlp.experts.{e}.up_proj",
    down="mlp.experts.{e}.down_proj",
    width="moe_intermediate_size",
)


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    # Transformers takes the softmax over all experts; with norm_topk_prob it also divides by the sum over the top k.
    # Without the division this is Megatron's softmax before top-k, with it Megatron's softmax over the top-k logits.
    experts = decoder.expert_fields(config, _EXPERTS, pre_softmax=not flag(config, "norm_topk_prob"))
    return {**decoder.transformer_fields(config, attention=_ATTENTION), **experts}


family = Family(
    architectures=("Qwen3MoeForCausalLM",),
    check=partial(decoder.check, also={**decoder.SWITCHED_WINDOW, **_UNIFORM}, rope_parameters=decoder.YARN_ROPE),
    transformer_fields=transformer_fields,
    model_fields=partial(decoder.model_fields, attention=_ATTENTION),
    rows=partial(decoder.rows, attention=_ATTENTION, experts=_EXPERTS),
    expert_names=_EXPERTS,
)
