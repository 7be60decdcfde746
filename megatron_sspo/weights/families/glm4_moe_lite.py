"""GLM-4.7-Flash: the attention and the experts of DeepSeek-V3."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.weights.families import deepseek_v3
from megatron_sspo.weights.family import Config, size


def _as_deepseek(config: Config) -> Config:
    """Returns the configuration with Transformers' own ε, and number of first layers without experts."""
    kinds = config.get("mlp_layer_types") or ["dense", *["sparse"] * (size(config, "num_hidden_layers") - 1)]
    if kinds != sorted(kinds):
        raise UserError(
            f"config.json has mlp_layer_types {short_repr(kinds)}, which is not supported: layers without experts come "
            "first"
        )
    return {"rms_norm_eps": 1e-5, **config, "first_k_dense_replace": kinds.count("dense")}


def _taking(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda config, *others: function(_as_deepseek(config), *others)


family = replace(
    deepseek_v3.family,
    architectures=("Glm4MoeLiteForCausalLM",),
    check=_taking(deepseek_v3.check),
    transformer_fields=_taking(deepseek_v3.transformer_fields),
    rows=_taking(deepseek_v3.rows),
)
