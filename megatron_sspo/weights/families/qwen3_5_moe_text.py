"""The text models of Qwen3.5 and Qwen3.6 with experts: Qwen3.5-35B-A3B, Qwen3.6-35B-A3B, Qwen3.5-397B-A17B."""

from functools import partial

from megatron_sspo.weights import delta_nets
from megatron_sspo.weights.family import Family

family = Family(
    architectures=("Qwen3_5MoeForCausalLM",),
    check=delta_nets.check,
    transformer_fields=partial(delta_nets.transformer_fields, is_normalized=True),
    model_fields=delta_nets.model_fields,
    rows=partial(delta_nets.rows, is_split=True),
    expert_names=delta_nets.EXPERTS,
)
