"""The work of a token and of a pair of tokens, from a model's sizes."""

from collections.abc import Sequence
from typing import Any, cast

from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention

from megatron_sspo.batching.work import Work


def work_of(transformer: TransformerConfig) -> Work:
    """Returns the work of a model's layers; each token passes `moe_router_topk` experts.

    In a layer with a window each token is counted with all of the window, however few tokens are before it.
    The head is left out: only response tokens pass it, and with a pipeline only on the last stage.
    """
    hidden, layers = transformer.hidden_size, transformer.num_layers
    matrices = 3 if transformer.gated_linear_unit else 2
    with_experts = _layers_with_experts(transformer)
    dense = matrices * hidden * (transformer.ffn_hidden_size or 0)
    experts = matrices * hidden * (
        transformer.moe_router_topk * (transformer.moe_ffn_hidden_size or 0)
        + (transformer.moe_shared_expert_intermediate_size or 0)
    ) + hidden * (transformer.num_moe_experts or 0)
    attention, pair = _of_attention(transformer)
    nets = sum(cast(Any, transformer.linear_attention_freq) or ())
    window, skips = transformer.window_size, cast(Any, transformer.window_attn_skip_freq)
    windows = sum(is_layer_window_attention(window, skips, number + 1) for number in range(layers))
    return Work(
        token=(layers - nets) * attention
        + (nets and nets * _of_delta_net(transformer))
        + windows * pair * (window[0] + 1 if window else 0)
        + (layers - with_experts) * dense
        + with_experts * experts,
        pair=(layers - windows - nets) * pair,
    )


def _of_attention(transformer: Any) -> tuple[int, int]:
    """Returns the multiplications of one layer's attention for a token, and for a pair of tokens."""
    hidden, heads, head_dim = transformer.hidden_size, transformer.num_attention_heads, transformer.kv_channels or 0
    if not transformer.multi_latent_attention:
        gates = heads if transformer.attention_output_gate else 0
        rows = 2 * heads + gates + 2 * (transformer.num_query_groups or heads)
        return hidden * head_dim * rows, 2 * heads * head_dim
    still, turned, value = transformer.qk_head_dim, transformer.qk_pos_emb_head_dim, transformer.v_head_dim
    rank, query_rank = transformer.kv_lora_rank, transformer.q_lora_rank
    query = heads * (still + turned)
    queries = query_rank * (hidden + query) if query_rank else hidden * query
    keys = hidden * (rank + turned) + rank * heads * (still + value)
    return queries + keys + hidden * heads * value, query + heads * value


def _of_delta_net(transformer: Any) -> int:
    """Returns the multiplications of a layer with a gated delta net for a token, in chunks of 64 tokens."""
    heads, key, value = (
        transformer.linear_num_value_heads,
        transformer.linear_key_head_dim,
        transformer.linear_value_head_dim,
    )
    keys = transformer.linear_num_key_heads * key
    projections = transformer.hidden_size * (2 * keys + 3 * heads * value + 2 * heads)
    convolution = transformer.linear_conv_kernel_dim * (2 * keys + heads * value)
    chunk = 64 * (3 * key + 2 * value)  # products within it; the others are with the state
    return projections + convolution + heads * (chunk + 3 * key * value)


def _layers_with_experts(transformer: TransformerConfig) -> int:
    if not transformer.num_moe_experts:
        return 0
    pattern = transformer.moe_layer_freq
    if isinstance(pattern, Sequence):
        return sum(map(bool, pattern))
    return sum(number % pattern == 0 for number in range(transformer.num_layers))
