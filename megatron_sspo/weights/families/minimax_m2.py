"""MiniMax-M2, M2.1 and M2.5: the experts of Mixtral, chosen as in DeepSeek-V3, and norms over all heads of a layer."""

from dataclasses import replace
from functools import partial
from typing import Any

from megatron_sspo.weights import decoder, sigmoid_experts
from megatron_sspo.weights.families import mixtral
from megatron_sspo.weights.family import Config, Family, number, size

_ATTENTION = decoder.Attention(qk_layernorm=True, default_groups=8, default_head_dim=128, norm_of_all_heads=True)
_EXPERTS = replace(mixtral.EXPERTS, bias="block_sparse_moe.e_score_correction_bias")
_THETA = 5e6


def check(config: Config) -> None:
    """Refuses settings that Megatron would compute differently."""
    also: decoder.Allowed = {
        "partial_rotary_factor": None,
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_layer",),
        "scoring_func": ("sigmoid",),
        "use_routing_bias": (True,),
        "shared_intermediate_size": (0,),
        "router_jitter_noise": (0, None),
        "auto_map": None,  # Transformers has a class of its own for the family
    }
    decoder.check(config, also, rope_parameters={"partial_rotary_factor": None})


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    return {
        **decoder.transformer_fields(config, attention=_ATTENTION),
        **sigmoid_experts.fields(config, _EXPERTS),
    }


def model_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of GPTModel. The rotary embedding turns the first `rotary_dim` dimensions of each head."""
    fields = decoder.model_fields(config, attention=_ATTENTION, default_theta=_THETA)
    head = size(config, "head_dim", default=128)
    share = size(config, "rotary_dim", default=head) / head
    turned = number({**config, **decoder.rope(config)}, "partial_rotary_factor", share)
    return {**fields, "rotary_percent": turned}


family = Family(
    architectures=("MiniMaxM2ForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=model_fields,
    rows=partial(decoder.rows, attention=_ATTENTION, experts=_EXPERTS),
    expert_names=_EXPERTS,
)
