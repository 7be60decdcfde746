"""The work of a token and of a pair of tokens, from a model's sizes."""

from collections.abc import Sequence

from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention

from megatron_sspo.batching.work import Work


def work_of(transformer: TransformerConfig) -> Work:
    """Returns the work of a model's layers; each token passes `moe_router_topk` experts.

    In a layer with a window each token is counted with all of the window, however few tokens are before it.
    The head is left out: only response tokens pass it, and with a pipeline only on the last stage.
    """
    hidden, layers = transformer.hidden_size, transformer.num_layers
    queries = transformer.num_attention_heads * (transformer.kv_channels or 0)
    keys = (transformer.num_query_groups or transformer.num_attention_heads) * (transformer.kv_channels or 0)
    matrices = 3 if transformer.gated_linear_unit else 2
    with_experts = _layers_with_experts(transformer)
    dense = matrices * hidden * (transformer.ffn_hidden_size or 0)
    experts = matrices * hidden * (
        transformer.moe_router_topk * (transformer.moe_ffn_hidden_size or 0)
        + (transformer.moe_shared_expert_intermediate_size or 0)
    ) + hidden * (transformer.num_moe_experts or 0)
    attention = 2 * hidden * (queries + keys)
    window, skips = transformer.window_size, transformer.window_attn_skip_freq
    windows = sum(is_layer_window_attention(window, skips, number + 1) for number in range(layers))
    return Work(
        token=layers * attention
        + windows * 2 * queries * (window[0] + 1 if window else 0)
        + (layers - with_experts) * dense
        + with_experts * experts,
        pair=(layers - windows) * 2 * queries,
    )


def _layers_with_experts(transformer: TransformerConfig) -> int:
    if not transformer.num_moe_experts:
        return 0
    pattern = transformer.moe_layer_freq
    if isinstance(pattern, Sequence):
        return sum(map(bool, pattern))
    return sum(number % pattern == 0 for number in range(transformer.num_layers))
