"""The memory that a microbatch keeps for its backward pass, layer by layer.

The terms are what autograd saves in the layers of `policy/model.py`, with Megatron's local layer spec and the modules
of `policy/layers/attention.py`, as listed by `torch.autograd.graph.saved_tensors_hooks`. Transformer Engine's norms
keep their input and one number per row, while torch's keep two copies in float32. Transformer Engine's other layers are
assumed to keep the same as the local ones, which has not been measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatron_sspo.run import Parallel

# How many of a layer's widest tensors are alive at once while it is computed, beyond what it keeps: the outputs of the
# experts, these outputs combined, and the gradient of either.
_WORKING_COPIES = 3
# The same of a gated delta net's values, if torch computes the chunks: float32 copies of its inputs, the chunks'
# solutions and states, and their gradients. Keys are taken to be as wide as values, as in all published models.
_NET_COPIES = 33


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The widths of a layer and its numbers of rows, as one rank has them.

    Attributes:
        rows: tokens of the hidden states, of which sequence parallelism gives each rank a part.
        inner_rows: tokens within attention and a dense MLP, which tensor parallelism shards by width.
        key_rows: tokens whose keys and values a rank keeps without Transformer Engine: those of all context-parallel
            ranks, and of a shared prompt a copy for each response.
        mask_columns: tokens for each of which a mask says whether a rank's token attends to it, as a mean over the
            rank's tokens; 0 where there are no masks, with neither context parallelism nor shared prompts.
        heads, groups: numbers of query heads and of key-value heads; query_width, kv_width: × head_dim.
        pair_width: width of keys and values together, which differ with latent attention.
        latents: width of the latents of queries, keys and values; 0 without latent attention.
        experts, chosen: numbers of experts and of experts per token; 0 in a dense layer.
        ffn_width: width of the MLP or of an expert; shared_width: that of the experts which every token passes.
        net_heads: number of value heads of a gated delta net; 0 in a layer with attention.
        net_channels: width of its queries, keys and values together; net_values: that of its values.
        net_keys: width of the keys of all value heads.
        has_gate, has_shared_gate: whether the output of attention, and of shared experts, is multiplied by a gate.
        has_sigmoid: whether a sigmoid chooses the experts, and not a softmax.
        has_clamp: whether gate and up are clamped before they are multiplied.
        expert_rows: (token, expert) pairs that this rank computes if all experts are used equally.
    """

    rows: int
    inner_rows: int
    key_rows: int
    mask_columns: int
    hidden: int
    query_width: int
    kv_width: int
    pair_width: int
    latents: int
    heads: int
    groups: int
    head_dim: int
    ffn_width: int
    experts: int
    chosen: int
    expert_rows: int
    shared_width: int
    net_heads: int
    net_channels: int
    net_values: int
    net_keys: int
    has_gate: bool
    has_shared_gate: bool
    has_sigmoid: bool
    has_clamp: bool
    has_qk_norm: bool


def sizes(
    architecture: Mapping[str, Any], parallel: Parallel, num_tokens: int, prompt: int, response: int, sharing: int = 1
) -> Sizes:
    """Returns the sizes of a layer on one rank.

    Args:
        architecture: the family's arguments of Megatron's TransformerConfig, as they are for this layer.
        num_tokens: the number of tokens of a microbatch.
        prompt, response: the numbers of tokens of the longest sequence.
        sharing: the number of responses that share a prompt.
    """
    sharing = min(sharing, max(1, (num_tokens - prompt) // response))
    longest, group = prompt + response, prompt + sharing * response
    key_rows = num_tokens * (prompt + sharing * longest) // group if sharing > 1 else num_tokens
    masked = num_tokens if parallel.context > 1 else num_tokens * sharing * response // group if sharing > 1 else 0
    tensor, head_dim = parallel.tensor, architecture["kv_channels"]
    inner_rows = -(-num_tokens // parallel.context)
    rows = -(-inner_rows // tensor) if parallel.sequence else inner_rows
    heads = -(-architecture["num_attention_heads"] // tensor)
    groups = -(-architecture["num_query_groups"] // tensor)
    is_latent = architecture.get("multi_latent_attention")
    key_dim = architecture["qk_head_dim"] + architecture["qk_pos_emb_head_dim"] if is_latent else head_dim
    experts, chosen = architecture.get("num_moe_experts") or 0, architecture.get("moe_router_topk", 0)
    has_net = architecture.get("linear_attention_freq")
    key_heads, net_heads, key, value = (
        architecture[f"linear_{name}"] if has_net else 0
        for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    width = architecture["moe_ffn_hidden_size"] if experts else architecture["ffn_hidden_size"]
    return Sizes(
        rows=rows,
        inner_rows=inner_rows,
        key_rows=key_rows,
        mask_columns=longest * masked // num_tokens,
        hidden=architecture["hidden_size"],
        query_width=heads * head_dim,
        kv_width=groups * head_dim,
        pair_width=groups * (key_dim + head_dim),
        latents=architecture["kv_lora_rank"] + (architecture["q_lora_rank"] or 0) if is_latent else 0,
        heads=heads,
        groups=groups,
        head_dim=head_dim,
        ffn_width=-(-width // (parallel.expert_tensor if experts else tensor)),
        experts=experts,
        chosen=chosen,
        expert_rows=rows * chosen * parallel.expert_tensor,
        shared_width=-(-(experts and architecture.get("moe_shared_expert_intermediate_size", 0)) // tensor),
        net_heads=net_heads // tensor,
        net_channels=(2 * key_heads * key + net_heads * value) // tensor,
        net_values=net_heads * value // tensor,
        net_keys=net_heads * key // tensor,
        has_gate=architecture.get("attention_output_gate", False),
        has_shared_gate=bool(experts and architecture.get("moe_shared_expert_gate")),
        has_sigmoid=architecture.get("moe_router_score_function") == "sigmoid",
        has_clamp=architecture.get("activation_func_clamp_value") is not None,
        has_qk_norm=bool(architecture.get("qk_layernorm") and not is_latent),
    )


def norm_bytes(rows: int, width: int, count: int, itemsize: int, *, use_te: bool) -> int:
    """Returns the bytes kept by norms of `count` vectors per row, which have `width` elements together."""
    return rows * (width * (itemsize if use_te else 8) + 4 * count)


def layer_bytes(s: Sizes, itemsize: int, *, use_te: bool) -> int:
    """Returns the bytes that a layer keeps of a microbatch."""
    kept = 2 * norm_bytes(s.rows, s.hidden, 1, itemsize, use_te=use_te) + itemsize * s.rows * s.hidden
    kept += (_delta_net if s.net_heads else _attention)(s, itemsize, use_te=use_te)
    mlp = itemsize * (s.rows * s.hidden + s.inner_rows * 5 * s.ffn_width)
    return kept + (_experts(s, itemsize) if s.experts else mlp)


def _attention(s: Sizes, itemsize: int, *, use_te: bool) -> int:
    kept = itemsize * s.inner_rows * s.query_width  # the input of the last linear layer
    if s.has_gate:  # the sigmoid in float32, and the output without it
        kept += s.inner_rows * (4 + itemsize) * s.query_width
    if s.has_qk_norm:
        kept += norm_bytes(s.inner_rows, s.query_width + s.kv_width, s.heads + s.groups, itemsize, use_te=use_te)
        if itemsize == 4 and not use_te:  # the key's norm then keeps query and value too, as parts of one tensor
            kept += s.inner_rows * 4 * (s.query_width + s.kv_width)
    if s.latents:  # their norms, and the inputs of the layers after these
        kept += norm_bytes(s.rows, s.latents, 2, itemsize, use_te=use_te) + itemsize * s.rows * s.latents
    # q, k, v, the output, the softmax normalizers; a query has the width of a key, and an output that of a value
    kept += s.inner_rows * (itemsize * (s.heads + s.groups) * (s.pair_width // s.groups) + 4 * s.heads)
    if not use_te:  # the other keys and values, and the masks
        kept += (s.key_rows - s.inner_rows) * itemsize * s.pair_width + s.inner_rows * itemsize * s.mask_columns
    return kept


def _delta_net(s: Sizes, itemsize: int, *, use_te: bool) -> int:
    # the convolution's input, the inputs of the gate and of the last linear layer, both factors of the latter; the
    # decays and rates
    kept = s.inner_rows * (itemsize * (s.net_channels + 2 * s.net_values) + 8 * s.net_values + 20 * s.net_heads)
    kept += norm_bytes(s.inner_rows, s.net_values, s.net_heads, itemsize, use_te=use_te)
    # beside these, kernels keep queries, keys, values, and a chunk's 64 products for each token
    return kept + (s.inner_rows * itemsize * (2 * s.net_keys + s.net_values + 64 * s.net_heads) if use_te else 0)


def _experts(s: Sizes, itemsize: int) -> int:
    # the router: its input, the chosen experts' logits, indices and probabilities, and the routing map
    router = s.rows * (itemsize * s.hidden + 24 * s.chosen + (9 if s.has_sigmoid else 5) * s.experts)
    shared = itemsize * s.inner_rows * 5 * s.shared_width  # their input is the router's
    shared += itemsize * s.rows * s.hidden if s.has_shared_gate else 0
    # per pair: its input, fc1's output (2 · ffn_width), silu, up, their product, the weighted product, the weight; with
    # a clamp, the gate behind it and its sigmoid
    return router + shared + s.expert_rows * (itemsize * (s.hidden + (6 + 2 * s.has_clamp) * s.ffn_width) + 4)


def working_bytes(s: Sizes, itemsize: int, *, use_te: bool) -> int:
    """Returns the bytes that are alive while a layer is computed, forward or backward, beyond what it keeps."""
    one_by_one = s.experts and not use_te  # so that only their outputs are there for all rows
    widest = (s.expert_rows if s.experts else s.inner_rows) * max(s.hidden, 0 if one_by_one else 2 * s.ffn_width)
    working = _WORKING_COPIES * widest * itemsize
    if not s.net_heads or use_te:
        return working
    # when its chunks' backward pass begins, the layer keeps its first norm and the convolution's input alone
    left = norm_bytes(s.rows, s.hidden, 1, itemsize, use_te=False) + itemsize * s.inner_rows * s.net_channels
    of_net = _NET_COPIES * 4 * s.inner_rows * s.net_values + left - layer_bytes(s, itemsize, use_te=False)
    return max(working, of_net)
