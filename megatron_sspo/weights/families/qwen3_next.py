"""Qwen3-Next: Qwen3-Next-80B-A3B."""

from functools import partial
from typing import Any

from megatron_sspo.weights import delta_nets
from megatron_sspo.weights.family import Config, Family, flag


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    is_normalized = flag({"norm_topk_prob": True, **config}, "norm_topk_prob")
    return delta_nets.transformer_fields(config, is_normalized=is_normalized)


family = Family(
    architectures=("Qwen3NextForCausalLM",),
    check=delta_nets.check,
    transformer_fields=transformer_fields,
    model_fields=delta_nets.model_fields,
    rows=partial(delta_nets.rows, is_split=False),
    expert_names=delta_nets.EXPERTS,
)
