"""Multi-head latent attention: queries, keys and values are made of latent vectors of lower rank.

A head's query and key have a part of `qk_nope_head_dim` dimensions without a position, made of the latents, and one of
`qk_rope_head_dim` that is turned; all heads share the key's. A head's value has `v_head_dim` dimensions.
"""

from typing import Any

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import Config, number, size
from megatron_sspo.weights.table import ParameterMap, column_parallel, replicated, row_parallel

ROPE: decoder.Allowed = {"rope_type": ("default", "yarn"), "attention_factor": (None,), "truncate": (True,)}
"""The parameters of the rotary embedding that Megatron computes as Transformers does."""


def check(config: Config) -> None:
    """Refuses key-value heads that are shared, and one of YaRN's two factors without the other.

    Transformers multiplies cosines by get(mscale) / get(mscale_all_dim) if both are there, and otherwise by get(1).
    """
    heads = size(config, "num_attention_heads")
    if (groups := size(config, "num_key_value_heads", default=heads)) != heads:
        raise UserError(
            f"config.json has num_key_value_heads {groups} and num_attention_heads {heads}, which is not supported: "
            "heads of latent attention share no keys"
        )
    found = decoder.rope(config)
    factors = [found.get(name) for name in ("mscale", "mscale_all_dim")]
    if bool(factors[0]) != bool(factors[1]):
        raise UserError(
            f"config.json has mscale {short_repr(factors[0])} and mscale_all_dim {short_repr(factors[1])}, which is "
            "not supported: YaRN has both or neither"
        )


def fields(config: Config) -> dict[str, Any]:
    """Returns further arguments of MLATransformerConfig. `kv_channels` is the size of a head's output."""
    found = decoder.rope(config)
    yarn: dict[str, Any] = {}
    if found["rope_type"] == "yarn":
        has_factors = bool(found.get("mscale"))
        yarn = {
            "rotary_scaling_factor": number(found, "factor"),
            "original_max_position_embeddings": size(found, "original_max_position_embeddings"),
            "beta_fast": number(found, "beta_fast", 32),
            "beta_slow": number(found, "beta_slow", 1),
            "mscale": number(found, "mscale") if has_factors else 1.0,
            "mscale_all_dim": number(found, "mscale_all_dim") if has_factors else 0.0,
        }
    return {
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "q_lora_rank": _query_rank(config),
        "kv_lora_rank": size(config, "kv_lora_rank"),
        "qk_head_dim": size(config, "qk_nope_head_dim"),
        "qk_pos_emb_head_dim": size(config, "qk_rope_head_dim"),
        "v_head_dim": size(config, "v_head_dim"),
        "kv_channels": size(config, "v_head_dim"),
        "rope_type": "yarn" if yarn else "rope",
        "rotary_base": found["rope_theta"],
        **yarn,
    }


def rows(config: Config, layer: int) -> list[ParameterMap]:
    """Returns the rows of one layer's attention and of its norms.

    Every rank holds the projections to the latents whole, as Transformer Engine's layers do.
    """
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    rank, query_rank = size(config, "kv_lora_rank"), _query_rank(config)
    turned, still, value = (size(config, name) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    megatron, hf = f"decoder.layers.{layer}", f"model.layers.{layer}"

    def whole(name: str, source: str, *shape: int) -> ParameterMap:
        return replicated(f"{megatron}.self_attention.{name}.weight", f"{hf}.self_attn.{source}.weight", shape)

    def by_heads(name: str, source: str, width: int, inputs: int) -> ParameterMap:
        names = f"{megatron}.self_attention.{name}.weight", f"{hf}.self_attn.{source}.weight"
        return column_parallel(*names, (heads * width, inputs), "num_attention_heads * head width")

    down = whole("linear_kv_down_proj", "kv_a_proj_with_mqa", rank + turned, hidden)
    queries = [by_heads("linear_q_proj", "q_proj", still + turned, hidden), down]
    if query_rank:
        queries = [
            whole("linear_q_down_proj", "q_a_proj", query_rank, hidden),
            down,
            whole("q_layernorm", "q_a_layernorm", query_rank),
            by_heads("linear_q_up_proj", "q_b_proj", still + turned, query_rank),
        ]
    return [
        replicated(f"{megatron}.input_layernorm.weight", f"{hf}.input_layernorm.weight", (hidden,)),
        *queries,
        whole("kv_layernorm", "kv_a_layernorm", rank),
        by_heads("linear_kv_up_proj", "kv_b_proj", still + value, rank),
        row_parallel(
            f"{megatron}.self_attention.linear_proj.weight",
            f"{hf}.self_attn.o_proj.weight",
            (hidden, heads * value),
            "num_attention_heads * v_head_dim",
        ),
        replicated(f"{megatron}.pre_mlp_layernorm.weight", f"{hf}.post_attention_layernorm.weight", (hidden,)),
    ]


def _query_rank(config: Config) -> int | None:
    """Returns the rank of the queries' latent; None if queries are made of the hidden state at once."""
    return None if config.get("q_lora_rank", 0) is None else size(config, "q_lora_rank")
