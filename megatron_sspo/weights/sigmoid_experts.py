"""Experts as in DeepSeek-V3: chosen by sigmoid scores and a bias, perhaps in groups, beside experts for all tokens.

A token's score of expert e is s_e = σ(w_e · x). The experts with the largest s_e + b_e are chosen, and weighted by
their s_e, which are divided by their sum and multiplied by a factor. No gradient reaches the bias b: Megatron moves it
outside of the optimizer, so that all experts get tokens.
"""

from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import Config, ExpertNames, number, size

EXPERTS = ExpertNames(
    router="mlp.gate",
    gate="mlp.experts.{e}.gate_proj",
    up="mlp.experts.{e}.up_proj",
    down="mlp.experts.{e}.down_proj",
    width="moe_intermediate_size",
    bias="mlp.gate.e_score_correction_bias",
    shared="mlp.shared_experts",
)
"""The names of their tensors in a folder."""


def num_dense(config: Config) -> int:
    """Returns the number of first layers that have no experts."""
    name = "first_k_dense_replace"
    return 0 if config.get(name) == 0 else size(config, name, default=1)


def check(config: Config) -> None:
    """Refuses groups of experts that Megatron would rank differently.

    Transformers ranks a group by the sum of its two best scores, Megatron by that of its best topk // topk_group.
    """
    chosen, groups = size(config, "num_experts_per_tok"), size(config, "topk_group", default=1)
    if size(config, "n_group", default=1) > 1 and chosen // groups != 2:
        raise UserError(
            f"config.json has num_experts_per_tok {chosen} and topk_group {groups}, which is not supported: Megatron "
            f"would rank groups of experts by their best {chosen // groups} and not by their best 2"
        )


def fields(config: Config, names: ExpertNames, *, num_dense: int = 0) -> dict[str, Any]:
    """Returns further arguments of TransformerConfig."""
    found = {
        **decoder.expert_fields(config, names, num_dense=num_dense),
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_topk_scaling_factor": number(config, "routed_scaling_factor", 1.0),
    }
    if names.shared:
        width = size(config, names.width) * size(config, "n_shared_experts", default=1)
        found["moe_shared_expert_intermediate_size"] = width
    if (groups := size(config, "n_group", default=1)) > 1:
        found |= {"moe_router_num_groups": groups, "moe_router_group_topk": size(config, "topk_group", default=1)}
    return found
