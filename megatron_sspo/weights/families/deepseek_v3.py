"""DeepSeek-V3, DeepSeek-R1 and Moonlight."""

from functools import partial
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.weights import decoder, latent_attention, sigmoid_experts
from megatron_sspo.weights.family import Config, Family
from megatron_sspo.weights.sigmoid_experts import EXPERTS
from megatron_sspo.weights.table import ParameterMap

_ATTENTION = decoder.Attention(has_own_rope=True)
# Transformers' defaults of these fields are DeepSeek-V3's own
_NEEDED = ("n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace", "n_shared_experts")


def check(config: Config) -> None:
    """Refuses settings that Megatron would compute differently."""
    also: decoder.Allowed = {
        "norm_topk_prob": (True,),
        "rope_interleave": (True,),
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "moe_layer_freq": (1,),
        "auto_map": None,  # Transformers has a class of its own for the family
    }
    decoder.check(config, also, rope_parameters=latent_attention.ROPE)
    if missing := [name for name in _NEEDED if config.get(name) is None]:
        raise UserError(f"config.json has no {missing[0]}: add it")
    latent_attention.check(config)
    sigmoid_experts.check(config)


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of MLATransformerConfig."""
    return {
        **decoder.transformer_fields(config, attention=_ATTENTION),
        **latent_attention.fields(config),
        **sigmoid_experts.fields(config, EXPERTS, num_dense=sigmoid_experts.num_dense(config)),
    }


def rows(config: Config, padded_vocab_size: int) -> list[ParameterMap]:
    """Returns one row per parameter."""
    num_dense = sigmoid_experts.num_dense(config)

    def layer_rows(layer: int) -> list[ParameterMap]:
        is_dense = layer < num_dense
        mlp = decoder.mlp_rows(config, layer) if is_dense else decoder.expert_rows(config, layer, EXPERTS)
        return [*latent_attention.rows(config, layer), *mlp]

    return decoder.model_rows(config, padded_vocab_size, layer_rows)


family = Family(
    architectures=("DeepseekV3ForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=partial(decoder.model_fields, attention=_ATTENTION),
    rows=rows,
    expert_names=EXPERTS,
)
