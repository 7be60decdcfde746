"""Llama and models with its architecture: Llama 2, 3, 3.1 to 3.3, SmolLM."""

from typing import Any

from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import Config, Family, number, require

# The RoPE scaling of Llama 3.1. Megatron takes only the factor as an argument; it hardcodes the other values.
_LLAMA3 = {
    "low_freq_factor": (1,),
    "high_freq_factor": (4,),
    "original_max_position_embeddings": (8192,),
}


def check(config: Config) -> None:
    """Refuses settings that Megatron would compute differently."""
    decoder.check(config, {"mlp_bias": (False, None)}, rope_parameters={"rope_type": ("default", "llama3")})
    if _is_llama3(config):
        # Transformers takes the original length from beside the scaling, from within it, or from the model's length
        length = "original_max_position_embeddings"
        found = {**dict.fromkeys(_LLAMA3), length: config.get("max_position_embeddings"), **decoder.rope(config)}
        require({**found, length: config.get(length, found[length])}, _LLAMA3)


def model_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of GPTModel."""
    fields = decoder.model_fields(config)
    if _is_llama3(config):
        fields |= {"rope_scaling": True, "rope_scaling_factor": number(decoder.rope(config), "factor")}
    return fields


def _is_llama3(config: Config) -> bool:
    return decoder.rope(config)["rope_type"] == "llama3"


family = Family(
    architectures=("LlamaForCausalLM",),
    check=check,
    transformer_fields=decoder.transformer_fields,
    model_fields=model_fields,
    rows=decoder.rows,
)
