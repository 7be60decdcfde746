"""What a model family is, and how config.json finds its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.resolve import resolve, short_names
from megatron_sspo.weights.table import Row, gate_up, qkv, row_parallel, vocab, whole

_FOLDER = "weights/families"

Config = Mapping[str, Any]  # the content of config.json


@dataclass(frozen=True, kw_only=True)
class Family:
    """All that is known about the models of one `model_type`: the functions take config.json's content."""

    architectures: tuple[str, ...]  # the classes of Transformers that it stands for
    check: Callable[[Config], None]  # UserError for a field that Megatron would compute otherwise
    transformer_fields: Callable[[Config], dict[str, Any]]  # arguments of Megatron's TransformerConfig
    model_fields: Callable[[Config], dict[str, Any]]  # arguments of Megatron's GPTModel; vocab_size is not padded
    rows: Callable[[Config, int], list[Row]]  # (config, padded vocabulary size) -> one row per parameter of the model


def load_family(config: Config, name: str | None = None) -> Family:
    """The family of a model: the file `families/<model_type>.py`, or the one that the user names.

    Args:
        name: a short name or `package.module:attribute`, in place of config.json's `model_type`. Only the user sets
            it: config.json comes from outside and never names a module to import.

    Raises:
        UserError: the architecture is not supported, or the family refuses a field of config.json.
    """
    if name is None:
        name = config.get("model_type")
        if name not in short_names(_FOLDER, "family"):
            raise _unsupported(f"model_type {name!r}")
    family: Family = resolve(_FOLDER, name, "family")
    for architecture in (config.get("architectures") or [])[:1]:
        if architecture not in family.architectures:
            raise _unsupported(f"architecture {architecture!r}")
    family.check(config)
    return family


def size(config: Config, *names: str, default: int | None = None) -> int:
    """A positive integer of config.json, under the first of `names` that is there."""
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"config.json has {name} {value!r}; it must be a positive integer")
            return value
    if default is None:
        raise UserError(f"config.json has no {' or '.join(names)}; the model cannot be built without it")
    return default


def attention_sizes(config: Config) -> tuple[int, int, int]:
    """(query heads, key-value heads, size of a head)."""
    num_heads = size(config, "num_attention_heads")
    num_groups = size(config, "num_key_value_heads", default=num_heads)
    if num_heads % num_groups:
        raise UserError(
            f"config.json has num_attention_heads {num_heads}, not a multiple of num_key_value_heads {num_groups}"
        )
    return num_heads, num_groups, size(config, "head_dim", default=size(config, "hidden_size") // num_heads)


def require(config: Config, values: Mapping[str, Sequence[Any]]) -> None:
    """Refuses a field of config.json that has another value than those listed. An absent field is accepted."""
    for field, allowed in values.items():
        if field in config and config[field] not in allowed:
            raise UserError(
                f"config.json has {field} {config[field]!r}, which is not supported: "
                f"it must be {' or '.join(repr(value) for value in allowed)}"
            )


# What `decoder_fields` and `decoder_rows` stand for: RMSNorm, rotary attention and SiLU-gated MLPs, without biases.
PLAIN_DECODER = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "attention_dropout": (0, None),
    "partial_rotary_factor": (1, None),
    "quantization_config": (None,),
}


def decoder_fields(config: Config) -> dict[str, Any]:
    """Arguments of TransformerConfig that such decoders share."""
    num_heads, num_groups, head_dim = attention_sizes(config)
    return {
        "num_layers": size(config, "num_hidden_layers"),
        "hidden_size": size(config, "hidden_size"),
        "ffn_hidden_size": size(config, "intermediate_size"),
        "num_attention_heads": num_heads,
        "num_query_groups": num_groups,
        "kv_channels": head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": config.get("rms_norm_eps", 1e-6),
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def embedding_fields(config: Config) -> dict[str, Any]:
    """Arguments of GPTModel that such decoders share: the vocabulary and the rotary embedding."""
    return {
        "vocab_size": size(config, "vocab_size"),
        "max_sequence_length": size(config, "max_position_embeddings"),
        "share_embeddings_and_output_weights": bool(config.get("tie_word_embeddings", False)),
        "position_embedding_type": "rope",
        "rotary_base": rope(config)["rope_theta"],
    }


def rope(config: Config) -> dict[str, Any]:
    """The rotary embedding's parameters as Transformers 5 writes them: {"rope_type", "rope_theta", ...}.

    Older files have `rope_theta` beside a `rope_scaling` that may call the type `type`.
    """
    found = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    theta = config.get("rope_theta") or 10000.0
    return {"rope_type": found.pop("type", "default"), "rope_theta": theta, **found}


def require_rope(config: Config, values: Mapping[str, Sequence[Any]]) -> None:
    """Refuses rotary parameters other than `values`, and those that are partial or differ between layers."""
    parameters = rope(config)
    by_layer = [name for name, value in parameters.items() if isinstance(value, Mapping)]
    if by_layer:
        raise UserError(f"config.json has rope_parameters for each of {', '.join(by_layer)}, which is not supported")
    require(parameters, {"partial_rotary_factor": (1, None), **values})


def decoder_rows(config: Config, padded_vocab_size: int, layer_rows: Callable[[Config, int], list[Row]]) -> list[Row]:
    """The rows of such decoders: embedding, `layer_rows(config, layer)` of each layer, norm, output layer if untied."""
    shape = (size(config, "vocab_size"), size(config, "hidden_size"))
    tied = config.get("tie_word_embeddings", False)
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
        whole("decoder.final_layernorm.weight", "model.norm.weight", shape[1:]),
        *([] if tied else [vocab("output_layer.weight", "lm_head.weight", shape, padded_vocab_size)]),
    ]


def attention_rows(config: Config, layer: int, *, qk_layernorm: bool = False, qkv_bias: bool = False) -> list[Row]:
    """The rows of one layer's attention and of its two norms."""
    hidden = size(config, "hidden_size")
    num_heads, num_groups, head_dim = attention_sizes(config)
    megatron, hf = f"decoder.layers.{layer}", f"model.layers.{layer}"
    norms = [
        whole(f"{megatron}.self_attention.{x}_layernorm.weight", f"{hf}.self_attn.{x}_norm.weight", (head_dim,))
        for x in ("q", "k")
    ]

    def linear_qkv(what: str, inputs: tuple[int, ...]) -> Row:
        return qkv(
            f"{megatron}.self_attention.linear_qkv.{what}",
            (f"{hf}.self_attn.q_proj.{what}", f"{hf}.self_attn.k_proj.{what}", f"{hf}.self_attn.v_proj.{what}"),
            num_heads=num_heads,
            num_groups=num_groups,
            head_dim=head_dim,
            inputs=inputs,
        )

    return [
        whole(f"{megatron}.input_layernorm.weight", f"{hf}.input_layernorm.weight", (hidden,)),
        linear_qkv("weight", (hidden,)),
        *([linear_qkv("bias", ())] if qkv_bias else []),
        *(norms if qk_layernorm else []),
        row_parallel(
            f"{megatron}.self_attention.linear_proj.weight",
            f"{hf}.self_attn.o_proj.weight",
            (hidden, num_heads * head_dim),
            "num_attention_heads * head_dim",
        ),
        whole(f"{megatron}.pre_mlp_layernorm.weight", f"{hf}.post_attention_layernorm.weight", (hidden,)),
    ]


def gated_mlp_rows(config: Config, layer: int) -> list[Row]:
    """The rows of one layer's dense MLP."""
    hidden, width = size(config, "hidden_size"), size(config, "intermediate_size")
    megatron, hf = f"decoder.layers.{layer}.mlp", f"model.layers.{layer}.mlp"
    return [
        gate_up(
            f"{megatron}.linear_fc1.weight",
            (f"{hf}.gate_proj.weight", f"{hf}.up_proj.weight"),
            (width, hidden),
            "intermediate_size",
        ),
        row_parallel(f"{megatron}.linear_fc2.weight", f"{hf}.down_proj.weight", (hidden, width), "intermediate_size"),
    ]


def _unsupported(what: str) -> UserError:
    supported = {
        model_type: resolve(_FOLDER, model_type, "family").architectures
        for model_type in short_names(_FOLDER, "family")
    }
    listed = ", ".join(f"{name} ({', '.join(architectures)})" for name, architectures in supported.items())
    return UserError(f"{what} of config.json is not supported: the model families are {listed}")
