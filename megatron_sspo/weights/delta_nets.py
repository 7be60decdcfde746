"""The parts of families with gated delta nets in most layers, and attention with an output gate in the others."""

from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import Config, ExpertNames, number, size
from megatron_sspo.weights.sharding import Interleaved
from megatron_sspo.weights.table import ParameterMap, replicated, row_parallel

EXPERTS = ExpertNames(
    router="mlp.gate",
    gate="mlp.experts.{e}.gate_proj",
    up="mlp.experts.{e}.up_proj",
    down="mlp.experts.{e}.down_proj",
    width="moe_intermediate_size",
    shared="mlp.shared_expert",
    shared_width="shared_expert_intermediate_size",
    shared_gate="mlp.shared_expert_gate",
)
_ATTENTION = decoder.Attention(qk_layernorm=True, default_groups=2, default_head_dim=256, output_gate=True)
_KINDS = ("linear_attention", "full_attention")
_SIZES = {  # Transformers' defaults
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def check(config: Config) -> None:
    """Refuses settings that Megatron would compute differently."""
    also = {"partial_rotary_factor": None, "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)}
    also |= {"attn_output_gate": (True,), "layer_types": None}
    decoder.check(config, also, rope_parameters={"partial_rotary_factor": None})
    if len(kinds := _kinds(config)) != size(config, "num_hidden_layers") or not set(kinds) <= set(_KINDS):
        raise UserError(f"config.json has layer_types {kinds}: each layer must be one of {', '.join(_KINDS)}")


def transformer_fields(config: Config, *, is_normalized: bool) -> dict[str, Any]:
    """Returns arguments of TransformerConfig.

    Args:
        is_normalized: whether the weights of a token's experts have the sum 1.
    """
    dense = {"intermediate_size": size(config, EXPERTS.width), **config}  # of no layer
    return {
        **decoder.transformer_fields(dense, attention=_ATTENTION),
        **decoder.expert_fields(config, EXPERTS, pre_softmax=not is_normalized),
        **_sizes(config),
        "layernorm_zero_centered_gamma": True,
        "attention_output_gate": True,
        "linear_attention_freq": [int(kind == "linear_attention") for kind in _kinds(config)],
        "moe_shared_expert_intermediate_size": size(config, EXPERTS.shared_width),
        "moe_shared_expert_gate": True,
    }


def model_fields(config: Config) -> dict[str, Any]:
    """Returns arguments of GPTModel. The rotary embedding turns the first dimensions of each head, a quarter."""
    turned = number({**config, **decoder.rope(config)}, "partial_rotary_factor", 0.25)
    return {**decoder.model_fields(config), "rotary_percent": turned}


def rows(config: Config, padded_vocab_size: int, *, is_split: bool) -> list[ParameterMap]:
    """Returns one row per parameter.

    Args:
        is_split: whether a folder has queries, keys and values apart from the gates z, and b apart from a.
    """
    kinds = _kinds(config)

    def layer_rows(layer: int) -> list[ParameterMap]:
        attention = decoder.attention_rows(config, layer, _ATTENTION)
        if kinds[layer] == "linear_attention":  # the norms at both ends are those of every layer
            attention = [attention[0], *_delta_net_rows(config, layer, is_split=is_split), attention[-1]]
        return [*attention, *decoder.expert_rows(config, layer, EXPERTS)]

    return decoder.model_rows(config, padded_vocab_size, layer_rows)


def _delta_net_rows(config: Config, layer: int, *, is_split: bool) -> list[ParameterMap]:
    """Returns the rows of a gated delta net. Megatron's projections have one key head after the other."""
    megatron, hf = f"decoder.layers.{layer}.self_attention", f"model.layers.{layer}.linear_attn"
    hidden, (key_heads, heads, key_dim, value_dim, width) = size(config, "hidden_size"), _sizes(config).values()
    keys, values = key_heads * key_dim, heads * value_dim

    def by_head(name: str, parts: dict[str, tuple[int, ...]], *inputs: int) -> ParameterMap:
        """Returns a row, from the parts of each source that have one head after the other."""
        return ParameterMap(
            name=f"{megatron}.{name}",
            hf=tuple(f"{hf}.{source}" for source in parts),
            hf_shapes=tuple((sum(rows), *inputs) for rows in parts.values()),
            sharding=Interleaved((*parts.values(),), key_heads, "linear_num_key_heads"),
            group="tensor",
        )

    if is_split:
        qkvz = {"in_proj_qkv.weight": (keys, keys, values), "in_proj_z.weight": (values,)}
        ba = {"in_proj_b.weight": (heads,), "in_proj_a.weight": (heads,)}
    else:
        qkvz, ba = {"in_proj_qkvz.weight": (2 * (keys + values),)}, {"in_proj_ba.weight": (2 * heads,)}
    return [
        by_head("in_proj_qkvz.weight", qkvz, hidden),
        by_head("in_proj_ba.weight", ba, hidden),
        by_head("conv_weight", {"conv1d.weight": (keys, keys, values)}, 1, width),
        by_head("dt_bias", {"dt_bias": (heads,)}),
        by_head("A_log", {"A_log": (heads,)}),
        replicated(f"{megatron}.out_norm.weight", f"{hf}.norm.weight", (value_dim,)),
        row_parallel(
            f"{megatron}.out_proj.weight", f"{hf}.out_proj.weight", (hidden, values), "linear_num_value_heads"
        ),
    ]


def _kinds(config: Config) -> list[str]:
    """Returns the kind of each layer; without the list, every fourth has attention."""
    interval = size(config, "full_attention_interval", default=4)
    count = size(config, "num_hidden_layers")
    return config.get("layer_types") or [_KINDS[(layer + 1) % interval == 0] for layer in range(count)]


def _sizes(config: Config) -> dict[str, int]:
    return {name: size(config, name, default=default) for name, default in _SIZES.items()}
