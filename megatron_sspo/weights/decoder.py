"""The parts that most families share: decoders with RMSNorm, rotary attention and SiLU-gated MLPs or experts.

The order is that of `Family`: checks of config.json, Megatron's arguments, rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.weights import yarn
from megatron_sspo.weights.family import DEQUANTIZE, EXPERTS, Config, ExpertNames, flag, number, require, size
from megatron_sspo.weights.table import Group, ParameterMap, gate_up, qkv, replicated, row_parallel, vocab

Allowed = Mapping[str, Sequence[Any] | None]  # field -> the values that it may have if it is present; None: any

_PLAIN: Allowed = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "attention_dropout": (0, None),
    "attention_chunk_size": (None,),
    "is_causal": (True,),
    "partial_rotary_factor": (1, None),
    "sliding_window": (None,),  # Transformers' key-value cache heeds it in every family
    "per_layer_config": (None, {}),
    "return_dict": (True,),
    "auto_map": (None, {}),  # code in the model's folder, which is neither run nor copied
    "attribute_map": ({},),  # Transformers reads other fields in place of those that it names
    # and the fields of such an object in place of all
    **dict.fromkeys(("text_config", "decoder", "text_encoder", "generator"), (None,)),
}
_PLAIN_ROPE: Allowed = {"rope_type": ("default",), "partial_rotary_factor": (1, None)}
_ROPE_THETA, _EPSILON = 10_000.0, 1e-6  # Transformers' defaults in most families
YARN_ROPE: Allowed = {"rope_type": ("default", "yarn")}
_FULL_ATTENTION = ("full_attention", "attention")  # to all earlier tokens, as newer and older files name it
SWITCHED_WINDOW: Allowed = {"use_sliding_window": (False, None), "sliding_window": None}
"""A window that is read only if it is switched on, as in the Qwen families."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention of a family, and Transformers' defaults for fields that config.json may lack.

    Attributes:
        qk_layernorm: whether each head's queries and keys have a norm.
        qkv_bias: whether q, k and v have biases.
        default_groups: the number of key-value heads; None: that of query heads.
        default_head_dim: the size of a head; None: hidden_size / num_attention_heads.
        output_gate: whether q_proj has, after each head's query, the gate of the head's output.
        has_own_rope: whether the attention itself has the rotary embedding, and scales the logits.
        norm_of_all_heads: whether the norm is of the queries, or keys, of all heads together.
    """

    qk_layernorm: bool = False
    qkv_bias: bool = False
    default_groups: int | None = None
    default_head_dim: int | None = None
    output_gate: bool = False
    has_own_rope: bool = False
    norm_of_all_heads: bool = False


_PLAIN_ATTENTION = Attention()


def check(config: Config, also: Allowed | None = None, *, rope_parameters: Allowed | None = None) -> None:
    """Refuses settings that Megatron would compute differently.

    Args:
        also: further fields of config.json, or other values of those that every family has.
        rope_parameters: the same for parameters of the rotary embedding.

    Raises:
        UserError: a setting is refused; the message names the field and its value.
    """
    if (quantization := config.get("quantization_config")) is not None:
        raise UserError(
            f"config.json has quantization_config {short_repr(quantization)}, which is not supported: {DEQUANTIZE}"
        )
    require(config, {**_PLAIN, **(also or {})})
    kinds = config.get("layer_types")
    if kinds is not None and "layer_types" not in (also or {}) and any(kind not in _FULL_ATTENTION for kind in kinds):
        raise UserError(
            f"config.json has layer_types {short_repr(sorted(set(kinds)))} (sliding_window "
            f"{short_repr(config.get('sliding_window'))}), which is not supported: all must be 'full_attention'"
        )
    require(rope(config), {**_PLAIN_ROPE, **(rope_parameters or {})})


def rope(config: Config, default_theta: float = _ROPE_THETA) -> dict[str, Any]:
    """Returns the rotary embedding's parameters as Transformers 5 writes them: {"rope_type", "rope_theta", ...}.

    Older files have `rope_theta` beside a `rope_scaling` in which the type may be called `type`.
    """
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    found = dict(config.get(name) or {})
    if any(isinstance(value, Mapping) for value in found.values()):
        raise UserError(f"config.json has {name} for each of {', '.join(found)}, which is not supported")
    rope_type = found.pop("type", "default")
    return {"rope_type": rope_type, **found, "rope_theta": number({**config, **found}, "rope_theta", default_theta)}


# ------------------------------------------------------------------ arguments


def transformer_fields(
    config: Config,
    *,
    attention: Attention = _PLAIN_ATTENTION,
    default_epsilon: float = _EPSILON,
    default_theta: float = _ROPE_THETA,
) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    num_heads, num_groups, head_dim = _attention_sizes(config, attention)
    turned = rope(config, default_theta)
    has_yarn = turned["rope_type"] == "yarn" and not attention.has_own_rope
    return {
        **({"softmax_scale": yarn.attention_factor(turned) ** 2 / head_dim**0.5} if has_yarn else {}),
        "num_layers": size(config, "num_hidden_layers"),
        "hidden_size": size(config, "hidden_size"),
        "ffn_hidden_size": size(config, "intermediate_size"),
        "num_attention_heads": num_heads,
        "num_query_groups": num_groups,
        "kv_channels": head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": number(config, "rms_norm_eps", default_epsilon),
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": attention.qkv_bias,
        "qk_layernorm": attention.qk_layernorm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def expert_fields(
    config: Config, names: ExpertNames, *, pre_softmax: bool = False, num_dense: int = 0
) -> dict[str, Any]:
    """Returns further arguments of TransformerConfig for experts that are chosen by a softmax.

    Args:
        pre_softmax: whether the softmax is over all experts, instead of over the logits of the chosen ones.
        num_dense: the number of first layers without experts.
    """
    chosen = size(config, "num_experts_per_tok")
    if chosen == 1 and not pre_softmax:
        raise UserError(
            "config.json has num_experts_per_tok 1, which is not supported: every expert's weight would be 1, and the "
            "router would get no gradient"
        )
    layers = range(size(config, "num_hidden_layers"))
    return {
        "num_moe_experts": size(config, *EXPERTS),
        "moe_ffn_hidden_size": size(config, names.width),
        "moe_layer_freq": [int(layer >= num_dense) for layer in layers] if num_dense else 1,  # 1 has experts
        "moe_router_topk": chosen,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": pre_softmax,
    }


def model_fields(
    config: Config, *, attention: Attention = _PLAIN_ATTENTION, default_theta: float = _ROPE_THETA
) -> dict[str, Any]:
    """Returns arguments of GPTModel: the vocabulary and the rotary embedding, with YaRN also its frequencies."""
    turned = rope(config, default_theta)
    has_yarn = turned["rope_type"] == "yarn" and not attention.has_own_rope
    head_dim = _attention_sizes(config, attention)[2]
    return {
        **({"rotary_frequencies": yarn.frequencies(config, turned, head_dim)} if has_yarn else {}),
        **({"norm_of_all_heads": True} if attention.norm_of_all_heads else {}),
        "vocab_size": size(config, "vocab_size"),
        "max_sequence_length": size(config, "max_position_embeddings"),
        "share_embeddings_and_output_weights": flag(config, "tie_word_embeddings"),
        "position_embedding_type": "rope",
        "rotary_base": turned["rope_theta"],
    }


# ------------------------------------------------------------------ rows


def rows(
    config: Config,
    padded_vocab_size: int,
    *,
    attention: Attention = _PLAIN_ATTENTION,
    experts: ExpertNames | None = None,
    num_dense: int = 0,
) -> list[ParameterMap]:
    """Returns the rows of a model whose layers have experts, except for the first `num_dense`, or have none."""

    def layer_rows(layer: int) -> list[ParameterMap]:
        of_layer = None if layer < num_dense else experts
        mlp = mlp_rows(config, layer) if of_layer is None else expert_rows(config, layer, of_layer)
        return [*attention_rows(config, layer, attention), *mlp]

    return model_rows(config, padded_vocab_size, layer_rows)


def model_rows(
    config: Config, padded_vocab_size: int, layer_rows: Callable[[int], list[ParameterMap]]
) -> list[ParameterMap]:
    """Returns the rows of a model: embedding, the rows of each layer, norm, output layer if untied."""
    shape = (size(config, "vocab_size"), size(config, "hidden_size"))
    tied = flag(config, "tie_word_embeddings")
    copies = ("lm_head.weight",) if tied else ()
    return [
        vocab("embedding.word_embeddings.weight", "model.embed_tokens.weight", shape, padded_vocab_size, copies),
        *(row for layer in range(size(config, "num_hidden_layers")) for row in layer_rows(layer)),
        replicated("decoder.final_layernorm.weight", "model.norm.weight", shape[1:]),
        *([] if tied else [vocab("output_layer.weight", "lm_head.weight", shape, padded_vocab_size)]),
    ]


def attention_rows(config: Config, layer: int, attention: Attention = _PLAIN_ATTENTION) -> list[ParameterMap]:
    """Returns the rows of one layer's attention and of its two norms."""
    hidden = size(config, "hidden_size")
    num_heads, num_groups, head_dim = _attention_sizes(config, attention)
    widths = [heads * head_dim if attention.norm_of_all_heads else head_dim for heads in (num_heads, num_groups)]
    megatron, hf = f"decoder.layers.{layer}", f"model.layers.{layer}"
    norms = [
        replicated(f"{megatron}.self_attention.{x}_layernorm.weight", f"{hf}.self_attn.{x}_norm.weight", (width,))
        for x, width in zip("qk", widths, strict=True)
    ]

    def linear_qkv(what: str, inputs: tuple[int, ...]) -> ParameterMap:
        return qkv(
            f"{megatron}.self_attention.linear_qkv.{what}",
            (f"{hf}.self_attn.q_proj.{what}", f"{hf}.self_attn.k_proj.{what}", f"{hf}.self_attn.v_proj.{what}"),
            num_heads=num_heads,
            num_groups=num_groups,
            head_dim=head_dim,
            inputs=inputs,
            output_gate=attention.output_gate,
        )

    return [
        replicated(f"{megatron}.input_layernorm.weight", f"{hf}.input_layernorm.weight", (hidden,)),
        linear_qkv("weight", (hidden,)),
        *([linear_qkv("bias", ())] if attention.qkv_bias else []),
        *(norms if attention.qk_layernorm else []),
        row_parallel(
            f"{megatron}.self_attention.linear_proj.weight",
            f"{hf}.self_attn.o_proj.weight",
            (hidden, num_heads * head_dim),
            "num_attention_heads * head_dim",
        ),
        replicated(f"{megatron}.pre_mlp_layernorm.weight", f"{hf}.post_attention_layernorm.weight", (hidden,)),
    ]


def mlp_rows(config: Config, layer: int) -> list[ParameterMap]:
    """Returns the rows of one layer's dense MLP."""
    hf = f"model.layers.{layer}.mlp"
    names = (f"{hf}.gate_proj.weight", f"{hf}.up_proj.weight", f"{hf}.down_proj.weight")
    return _gated_rows(config, f"decoder.layers.{layer}.mlp", names, "intermediate_size", "tensor")


def expert_rows(config: Config, layer: int, names: ExpertNames) -> list[ParameterMap]:
    """Returns the rows of one layer's router, its experts and those that all tokens share."""
    megatron, hf = f"decoder.layers.{layer}.mlp", f"model.layers.{layer}"
    num_experts = size(config, *EXPERTS)
    shape = (num_experts, size(config, "hidden_size"))
    found = [replicated(f"{megatron}.router.weight", f"{hf}.{names.router}.weight", shape)]
    if names.bias:
        bias = replicated(f"{megatron}.router.expert_bias", f"{hf}.{names.bias}", shape[:1])
        found.append(replace(bias, dtype=torch.float32))
    for e in range(num_experts):
        modules = tuple(f"{hf}.{module.format(e=e)}.weight" for module in (names.gate, names.up, names.down))
        found += _gated_rows(config, f"{megatron}.experts.{e}", modules, names.width, "expert_tensor")
    if names.shared:
        modules = tuple(f"{hf}.{names.shared}.{part}_proj.weight" for part in ("gate", "up", "down"))
        width, count = names.shared_width, 1
        if not width:
            width, count = names.width, size(config, "n_shared_experts", default=1)
        found += _gated_rows(config, f"{megatron}.shared_experts", modules, width, "tensor", count)
    if names.shared_gate:
        gate = (f"{megatron}.shared_experts.gate_weight", f"{hf}.{names.shared_gate}.weight")
        found.append(replicated(*gate, (1, shape[1])))
    return found


def _gated_rows(
    config: Config, megatron: str, hf: Sequence[str], width_field: str, group: Group, count: int = 1
) -> list[ParameterMap]:
    """Returns the rows of linear_fc1 and linear_fc2 of the module `megatron`, from gate, up and down.

    Its width is `count` times that of the field `width_field` of config.json.
    """
    gate, up, down = hf
    hidden, width = size(config, "hidden_size"), count * size(config, width_field)
    return [
        gate_up(f"{megatron}.linear_fc1.weight", (gate, up), (width, hidden), width_field, group),
        row_parallel(f"{megatron}.linear_fc2.weight", down, (hidden, width), width_field, group),
    ]


# ------------------------------------------------------------------ sizes


def _attention_sizes(config: Config, attention: Attention) -> tuple[int, int, int]:
    """Returns (query heads, key-value heads, size of a head)."""
    num_heads = size(config, "num_attention_heads")
    # a field that is null means as many as query heads in every family
    absent = attention.default_groups if "num_key_value_heads" not in config else None
    num_groups = size(config, "num_key_value_heads", default=absent or num_heads)
    default = attention.default_head_dim or size(config, "hidden_size") // num_heads
    return num_heads, num_groups, size(config, "head_dim", default=default)
