"""Mixtral: 8x7B, 8x22B."""

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
from megatron_sspo.weights.family import Config, ExpertNames, Family, size

_ATTENTION = Attention(default_groups=8)
_EXPERTS = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{e}.w1",
    up="block_sparse_moe.experts.{e}.w3",
    down="block_sparse_moe.experts.{e}.w2",
)


def check(config: Config) -> None:
    """Refuses settings that Megatron would compute differently."""
    require_decoder(config, {"router_jitter_noise": (0, None)})
    if size(config, "num_experts_per_tok") == 1:
        raise UserError(
            "config.json has num_experts_per_tok 1, which is not supported: every expert's weight would be 1, and the "
            "router would get no gradient"
        )


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    experts = expert_fields(config, width_field="intermediate_size", pre_softmax=False)
    return {**decoder_fields(config, attention=_ATTENTION, default_epsilon=1e-5), **experts}


family = Family(
    architectures=("MixtralForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=partial(embedding_fields, default_theta=1e6),
    rows=partial(moe_rows, names=_EXPERTS, width_field="intermediate_size", attention=_ATTENTION),
    expert_names=_EXPERTS,
)
