"""Mixtral: 8x7B, 8x22B."""

from functools import partial
from typing import Any

from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import Config, ExpertNames, Family

_ATTENTION = decoder.Attention(default_groups=8)
EXPERTS = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{e}.w1",
    up="block_sparse_moe.experts.{e}.w3",
    down="block_sparse_moe.experts.{e}.w2",
    width="intermediate_size",
)


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    fields = decoder.transformer_fields(config, attention=_ATTENTION, default_epsilon=1e-5)
    return {**fields, **decoder.expert_fields(config, EXPERTS, pre_softmax=False)}


family = Family(
    architectures=("MixtralForCausalLM",),
    check=partial(decoder.check, also={"router_jitter_noise": (0, None)}),
    transformer_fields=transformer_fields,
    model_fields=partial(decoder.model_fields, default_theta=1e6),
    rows=partial(decoder.rows, attention=_ATTENTION, experts=EXPERTS),
    expert_names=EXPERTS,
)
