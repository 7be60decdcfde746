"""gpt-oss: gpt-oss-20b, gpt-oss-120b.

A head's softmax has one more term, its sink, whose share goes to no token. Layers take turns with a window of the last
tokens. Every linear layer has biases, and an expert computes (clamp(up) + 1) · g · σ(1.702 g) with g = clamp(gate).
"""

from typing import Any

import torch

from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import EXPERTS, Config, ExpertNames, Family, number, require, size
from megatron_sspo.weights.sharding import FusedExpert
from megatron_sspo.weights.table import ParameterMap, column_parallel, replicated

_ATTENTION = decoder.Attention(qkv_bias=True, default_groups=8, default_head_dim=64)
_WIDTH = ExpertNames(router="", gate="", up="", down="", width="intermediate_size")
_THETA = 150000.0
_YARN = {  # Transformers' own where config.json has none
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_KINDS = ("sliding_attention", "full_attention")


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """Returns x · σ(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def check(config: Config) -> None:
    """Refuses settings that Megatron would compute differently."""
    also = {"attention_bias": (True,), "sliding_window": None, "layer_types": None, "swiglu_alpha": (1.702,)}
    decoder.check(_with_rope(config), also, rope_parameters=decoder.YARN_ROPE)
    for kind in _layer_types(config):
        require({"layer_types": kind}, {"layer_types": _KINDS})


def transformer_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    fields = decoder.transformer_fields(
        _with_rope(config), attention=_ATTENTION, default_epsilon=1e-5, default_theta=_THETA
    )
    return {
        **fields,
        **decoder.expert_fields(config, _WIDTH),
        "add_bias_linear": True,
        "activation_func": quick_gelu,
        "activation_func_clamp_value": number(config, "swiglu_limit", 7.0),
        "glu_linear_offset": 1.0,
        "softmax_type": "learnable",
        "window_size": (size(config, "sliding_window", default=128) - 1, 0),
        "window_attn_skip_freq": [int(kind == _KINDS[0]) for kind in _layer_types(config)],
    }


def model_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of GPTModel."""
    return decoder.model_fields(_with_rope(config), attention=_ATTENTION, default_theta=_THETA)


def rows(config: Config, padded_vocab_size: int) -> list[ParameterMap]:
    """Returns one row per parameter. The experts of a layer are one tensor in a folder, transposed."""
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    num_experts, width = size(config, *EXPERTS), size(config, "intermediate_size")

    def layer_rows(layer: int) -> list[ParameterMap]:
        megatron, hf = f"decoder.layers.{layer}", f"model.layers.{layer}"

        def experts(name: str, hf_name: str, shape: tuple[int, ...], *, is_gated: bool) -> list[ParameterMap]:
            return [
                ParameterMap(
                    name=f"{megatron}.mlp.experts.{e}.{name}",
                    hf=(f"{hf}.mlp.experts.{hf_name}",),
                    hf_shapes=((num_experts, *shape),),
                    sharding=FusedExpert(e, is_gated),
                    group="expert_tensor",
                )
                for e in range(num_experts)
            ]

        name = f"{megatron}.self_attention.core_attention.softmax_offset"
        sinks = column_parallel(name, f"{hf}.self_attn.sinks", (heads,), "num_attention_heads")
        return [
            *decoder.attention_rows(config, layer, _ATTENTION),
            sinks,
            replicated(f"{megatron}.self_attention.linear_proj.bias", f"{hf}.self_attn.o_proj.bias", (hidden,)),
            replicated(f"{megatron}.mlp.router.weight", f"{hf}.mlp.router.weight", (num_experts, hidden)),
            replicated(f"{megatron}.mlp.router.bias", f"{hf}.mlp.router.bias", (num_experts,)),
            *experts("linear_fc1.weight", "gate_up_proj", (hidden, 2 * width), is_gated=True),
            *experts("linear_fc1.bias", "gate_up_proj_bias", (2 * width,), is_gated=True),
            *experts("linear_fc2.weight", "down_proj", (width, hidden), is_gated=False),
            *experts("linear_fc2.bias", "down_proj_bias", (hidden,), is_gated=False),
        ]

    return decoder.model_rows(config, padded_vocab_size, layer_rows)


def _layer_types(config: Config) -> list[str]:
    return config.get("layer_types") or [_KINDS[layer % 2] for layer in range(size(config, "num_hidden_layers"))]


def _with_rope(config: Config) -> Config:
    return {**config, "rope_parameters": config.get("rope_parameters") or _YARN}


family = Family(
    architectures=("GptOssForCausalLM",),
    check=check,
    transformer_fields=transformer_fields,
    model_fields=model_fields,
    rows=rows,
)
