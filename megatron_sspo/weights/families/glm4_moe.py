"""GLM-4.5, GLM-4.5-Air, GLM-4.6 and GLM-4.7."""

from typing import Any

from megatron_sspo.weights import decoder, sigmoid_experts
from megatron_sspo.weights.family import Config, Family, flag, number
from megatron_sspo.weights.sigmoid_experts import EXPERTS
from megatron_sspo.weights.table import ParameterMap


def check(config: Config) -> None:
    """Refuses settings that Megatron would compute differently."""
    also = {"attention_bias": (True, False, None), "norm_topk_prob": (True,), "partial_rotary_factor": None}
    decoder.check(config, also, rope_parameters={"partial_rotary_factor": None})
    sigmoid_experts.check(config)


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    return {
        **decoder.transformer_fields(config, attention=_attention(config), default_epsilon=1e-5),
        **sigmoid_experts.fields(config, EXPERTS, num_dense=sigmoid_experts.num_dense(config)),
    }


def model_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of GPTModel. The rotary embedding turns the first dimensions of each head, half by default."""
    turned = number({**config, **decoder.rope(config)}, "partial_rotary_factor", 0.5)
    return {**decoder.model_fields(config), "rotary_percent": turned}


def rows(config: Config, padded_vocab_size: int) -> list[ParameterMap]:
    """Returns one row per parameter."""
    attention, num_dense = _attention(config), sigmoid_experts.num_dense(config)
    return decoder.rows(config, padded_vocab_size, attention=attention, experts=EXPERTS, num_dense=num_dense)


def _attention(config: Config) -> decoder.Attention:
    has_norms, has_biases = flag(config, "use_qk_norm"), flag(config, "attention_bias")
    return decoder.Attention(qk_layernorm=has_norms, qkv_bias=has_biases, default_groups=8)


family = Family(
    architectures=("Glm4MoeForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=model_fields,
    rows=rows,
    expert_names=EXPERTS,
)
