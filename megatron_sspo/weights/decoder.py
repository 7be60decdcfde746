"""The parts that most families share: decoders with RMSNorm, rotary attention and SiLU-gated MLPs or experts.

The order is that of `Family`: checks of config.json, Megatron's arguments, rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.weights.family import DEQUANTIZE, EXPERTS, Config, ExpertNames, flag, number, require, size
from megatron_sspo.weights.table import Group, ParameterMap, gate_up, qkv, replicated, row_parallel, vocab

Allowed = Mapping[str, Sequence[Any]]  # field -> the values that it may have if it is present

_PLAIN: Allowed = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "attention_dropout": (0, None),
    "attention_chunk_size": (None,),
    "is_causal": (True,),
    "partial_rotary_factor": (1, None),
    "per_layer_config": (None, {}),
    "return_dict": (True,),
    "auto_map": (None, {}),  # code in the model's folder, which is neither run nor copied
    "attribute_map": ({},),  # Transformers reads other fields in place of those that it names
    # and the fields of such an object in place of all
    **dict.fromkeys(("text_config", "decoder", "text_encoder", "generator"), (None,)),
}
_PLAIN_ROPE: Allowed = {"rope_type": ("default",)}
_ROPE_THETA, _EPSILON = 10_000.0, 1e-6  # Transformers' defaults in most families
# Limits far above every model, at which the weight table is still built in seconds.
_MAX_LAYERS, _MAX_EXPERTS = 10_000, 200_000
# Transformers' defaults in the Qwen families, and its names for attention to all earlier tokens, the older one second
_WINDOW, _FIRST_LAYER_WITH_WINDOW = 4096, 28
_FULL_ATTENTION = ("full_attention", "attention")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention of a family, and Transformers' defaults for fields that config.json may lack.

    Attributes:
        qk_layernorm: whether each head's queries and keys have a norm.
        qkv_bias: whether q, k and v have biases.
        default_groups: the number of key-value heads; None: that of query heads.
        default_head_dim: the size of a head; None: hidden_size / num_attention_heads.
    """

    qk_layernorm: bool = False
    qkv_bias: bool = False
    default_groups: int | None = None
    default_head_dim: int | None = None


_PLAIN_ATTENTION = Attention()


def require_decoder(
    config: Config,
    also: Allowed | None = None,
    *,
    rope_parameters: Allowed = _PLAIN_ROPE,
    windows: Literal["by layer", "in all layers"] | None = None,
) -> None:
    """Refuses settings that Megatron would compute differently: in common fields, in the fields of `also`, and in RoPE.

    Args:
        windows: which layers have the window `sliding_window` if `use_sliding_window` is true: those that `layer_types`
            names, or else those from `max_window_layers` on; or all. None: the family does not have these fields, but
            Transformers' key-value cache heeds `sliding_window` in every family, and `layer_types`.

    Raises:
        UserError: a setting is refused; the message names the field and its value.
    """
    if (quantization := config.get("quantization_config")) is not None:
        raise UserError(
            f"config.json has quantization_config {short_repr(quantization)}, which is not supported: {DEQUANTIZE}"
        )
    require(config, {**_PLAIN, **(also or {})})
    _require_layer_types(config)
    if windows is None:
        require(config, {"sliding_window": (None,)})
    elif windows == "in all layers" or config.get("layer_types") is None:
        _require_no_window(config, by_layer=windows == "by layer")
    found = rope(config)
    by_layer = [name for name, value in found.items() if isinstance(value, Mapping)]
    if by_layer:
        raise UserError(f"config.json has rope_parameters for each of {', '.join(by_layer)}, which is not supported")
    require(found, {"partial_rotary_factor": (1, None), **rope_parameters})


def _require_layer_types(config: Config) -> None:
    num_layers, kinds = size(config, "num_hidden_layers"), config.get("layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise UserError(
            f"config.json has layer_types {short_repr(kinds)}; it must list the kinds of attention of the "
            f"{num_layers:,} layers"
        )
    for layer, kind in enumerate(kinds):
        if kind not in _FULL_ATTENTION:
            raise UserError(
                f"config.json has layer_types with {short_repr(kind)} in layer {layer:,} (sliding_window "
                f"{short_repr(config.get('sliding_window'))}), which is not supported: it must be 'full_attention'"
            )


def _require_no_window(config: Config, *, by_layer: bool) -> None:
    if not flag(config, "use_sliding_window") or config.get("sliding_window", _WINDOW) is None:
        return
    window, num_layers = size(config, "sliding_window", default=_WINDOW), size(config, "num_hidden_layers")
    first = config.get("max_window_layers", _FIRST_LAYER_WITH_WINDOW) if by_layer else 0
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise UserError(f"config.json has max_window_layers {short_repr(first)}; it must be a number of layers")
    if first < num_layers:
        raise UserError(
            f"config.json has use_sliding_window True with a sliding window of {window:,} in layer {first:,} and later "
            "ones, which is not supported: every layer must attend to all earlier tokens"
        )


def rope(config: Config, default_theta: float = _ROPE_THETA) -> dict[str, Any]:
    """Returns the rotary embedding's parameters as Transformers 5 writes them: {"rope_type", "rope_theta", ...}.

    Older files have `rope_theta` beside a `rope_scaling` in which the type may be called `type`.
    """
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    written = config.get(name) or {}
    if not isinstance(written, Mapping):
        raise UserError(f"config.json has {name} {short_repr(written)}; it must be an object")
    found = dict(written)
    rope_type = found.pop("type", "default")
    # `require_decoder` refuses parameters that are given per kind of layer
    if not any(isinstance(value, Mapping) for value in found.values()):
        found["rope_theta"] = number({**config, **found}, "rope_theta", default_theta)
    return {"rope_type": rope_type, **found}


# ------------------------------------------------------------------ arguments


def decoder_fields(
    config: Config, *, attention: Attention = _PLAIN_ATTENTION, default_epsilon: float = _EPSILON
) -> dict[str, Any]:
    """Returns arguments of TransformerConfig."""
    num_heads, num_groups, head_dim = _attention_sizes(config, attention)
    num_layers = size(config, "num_hidden_layers")
    if num_layers > _MAX_LAYERS:
        raise UserError(
            f"config.json has num_hidden_layers {num_layers:,}, which is not supported: {_MAX_LAYERS:,} at most"
        )
    return {
        "num_layers": num_layers,
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


def expert_fields(config: Config, *, width_field: str, pre_softmax: bool) -> dict[str, Any]:
    """Returns further arguments of TransformerConfig for experts in every layer, chosen by a softmax.

    Args:
        width_field: the field of config.json with the intermediate size of an expert.
        pre_softmax: whether the softmax is over all experts, instead of over the logits of the chosen ones.
    """
    num_experts, chosen = _num_experts(config), size(config, "num_experts_per_tok")
    num_layers = size(config, "num_hidden_layers")
    if chosen > num_experts:
        raise UserError(f"config.json has num_experts_per_tok {chosen:,}, more than its {num_experts:,} experts")
    if num_experts * num_layers > _MAX_EXPERTS:
        raise UserError(
            f"config.json has {num_experts:,} experts in each of {num_layers:,} layers, which is not "
            f"supported: {_MAX_EXPERTS:,} in all at most"
        )
    return {
        "num_moe_experts": num_experts,
        "moe_ffn_hidden_size": size(config, width_field),
        "moe_layer_freq": 1,
        "moe_router_topk": chosen,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": pre_softmax,
    }


def embedding_fields(config: Config, *, default_theta: float = _ROPE_THETA) -> dict[str, Any]:
    """Returns arguments of GPTModel: the vocabulary and the rotary embedding."""
    return {
        "vocab_size": size(config, "vocab_size"),
        "max_sequence_length": size(config, "max_position_embeddings"),
        "share_embeddings_and_output_weights": flag(config, "tie_word_embeddings"),
        "position_embedding_type": "rope",
        "rotary_base": rope(config, default_theta)["rope_theta"],
    }


# ------------------------------------------------------------------ rows


def dense_rows(
    config: Config, padded_vocab_size: int, *, attention: Attention = _PLAIN_ATTENTION
) -> list[ParameterMap]:
    """Returns the rows of a model of dense layers."""

    def layer_rows(config: Config, layer: int) -> list[ParameterMap]:
        return [*attention_rows(config, layer, attention), *mlp_rows(config, layer)]

    return decoder_rows(config, padded_vocab_size, layer_rows)


def moe_rows(
    config: Config,
    padded_vocab_size: int,
    *,
    names: ExpertNames,
    width_field: str,
    attention: Attention = _PLAIN_ATTENTION,
) -> list[ParameterMap]:
    """Returns the rows of a model whose layers are all mixtures of experts; arguments: see `expert_rows`."""

    def layer_rows(config: Config, layer: int) -> list[ParameterMap]:
        return [*attention_rows(config, layer, attention), *expert_rows(config, layer, names, width_field)]

    return decoder_rows(config, padded_vocab_size, layer_rows)


def decoder_rows(
    config: Config, padded_vocab_size: int, layer_rows: Callable[[Config, int], list[ParameterMap]]
) -> list[ParameterMap]:
    """Returns the rows of a model: embedding, `layer_rows(config, layer)` per layer, norm, output layer if untied."""
    shape = (size(config, "vocab_size"), size(config, "hidden_size"))
    tied = flag(config, "tie_word_embeddings")
    embedding = vocab(
        "embedding.word_embeddings.weight",
        "model.embed_tokens.weight",
        shape,
        padded_vocab_size,
        copies=("lm_head.weight",) if tied else (),
    )
    return [
        embedding,
        *(row for layer in range(size(config, "num_hidden_layers")) for row in layer_rows(config, layer)),
        replicated("decoder.final_layernorm.weight", "model.norm.weight", shape[1:]),
        *([] if tied else [vocab("output_layer.weight", "lm_head.weight", shape, padded_vocab_size)]),
    ]


def attention_rows(config: Config, layer: int, attention: Attention = _PLAIN_ATTENTION) -> list[ParameterMap]:
    """Returns the rows of one layer's attention and of its two norms."""
    hidden = size(config, "hidden_size")
    num_heads, num_groups, head_dim = _attention_sizes(config, attention)
    megatron, hf = f"decoder.layers.{layer}", f"model.layers.{layer}"
    norms = [
        replicated(f"{megatron}.self_attention.{x}_layernorm.weight", f"{hf}.self_attn.{x}_norm.weight", (head_dim,))
        for x in ("q", "k")
    ]

    def linear_qkv(what: str, inputs: tuple[int, ...]) -> ParameterMap:
        return qkv(
            f"{megatron}.self_attention.linear_qkv.{what}",
            (f"{hf}.self_attn.q_proj.{what}", f"{hf}.self_attn.k_proj.{what}", f"{hf}.self_attn.v_proj.{what}"),
            num_heads=num_heads,
            num_groups=num_groups,
            head_dim=head_dim,
            inputs=inputs,
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


def expert_rows(config: Config, layer: int, names: ExpertNames, width_field: str) -> list[ParameterMap]:
    """Returns the rows of one layer's router and experts.

    Args:
        width_field: the field of config.json with the intermediate size of an expert.
    """
    megatron, hf = f"decoder.layers.{layer}.mlp", f"model.layers.{layer}"
    num_experts = _num_experts(config)
    shape = (num_experts, size(config, "hidden_size"))
    rows = [replicated(f"{megatron}.router.weight", f"{hf}.{names.router}.weight", shape)]
    for e in range(num_experts):
        modules = tuple(f"{hf}.{module.format(e=e)}.weight" for module in (names.gate, names.up, names.down))
        rows += _gated_rows(config, f"{megatron}.experts.{e}", modules, width_field, "expert_tensor")
    return rows


def _gated_rows(config: Config, megatron: str, hf: Sequence[str], width_field: str, group: Group) -> list[ParameterMap]:
    """Returns the rows of linear_fc1 and linear_fc2 of the module `megatron`, from gate, up and down."""
    gate, up, down = hf
    hidden, width = size(config, "hidden_size"), size(config, width_field)
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
    if num_heads % num_groups:
        raise UserError(
            f"config.json has num_attention_heads {num_heads}, not a multiple of num_key_value_heads {num_groups}"
        )
    hidden = size(config, "hidden_size")
    default = attention.default_head_dim
    if config.get("head_dim") is None and default is None and hidden % num_heads:
        raise UserError(
            f"config.json has hidden_size {hidden}, not a multiple of num_attention_heads {num_heads}, and no head_dim"
        )
    head_dim = size(config, "head_dim", default=default or hidden // num_heads)
    if head_dim % 2:
        raise UserError(f"config.json has a head_dim of {head_dim}; rotary embeddings need an even number")
    return num_heads, num_groups, head_dim


def _num_experts(config: Config) -> int:
    return size(config, *EXPERTS)
