"""What a microbatch keeps for its backward pass, layer by layer.

The terms are what autograd saves in the layers of `policy/model.py`, of Megatron's local specification and with the
modules of `policy/attention.py`, as `torch.autograd.graph.saved_tensors_hooks` lists it. Transformer Engine's norms
keep their input and one number a row, where torch's keep two copies in float32; its other layers are taken for equal,
which has not been measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatron_sspo.run import Parallel

# Rows of a layer's widest tensors that are alive at once while it is computed, beyond what it keeps: the outputs of the
# experts, these put together, and the gradient of either.
_WORKING_COPIES = 3


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The widths of a layer as one rank has them, and its rows.

    Attributes:
        rows: tokens where the hidden states are cut by sequence parallelism, or else all of the microbatch's.
        inner_rows: tokens within attention and a dense MLP, which tensor parallelism cuts by width.
        q, kv: query heads, key-value heads × size of a head. heads, groups: their numbers.
        experts, chosen: 0 in a dense layer. f: width of the MLP or of an expert.
        expert_rows: (token, expert) pairs that this rank computes where experts are used alike.
    """

    rows: int
    inner_rows: int
    all_rows: int
    h: int
    q: int
    kv: int
    heads: int
    groups: int
    head_dim: int
    f: int
    experts: int
    chosen: int
    expert_rows: int
    has_qk_norm: bool


def sizes(architecture: Mapping[str, Any], parallel: Parallel, num_tokens: int) -> Sizes:
    """The sizes of a layer.

    Args:
        architecture: what the family gives for Megatron's TransformerConfig.
        num_tokens: of a microbatch.
    """
    tensor, head_dim = parallel.tensor, architecture["kv_channels"]
    inner_rows = -(-num_tokens // parallel.context)
    rows = -(-inner_rows // tensor) if parallel.sequence else inner_rows
    heads = -(-architecture["num_attention_heads"] // tensor)
    groups = -(-architecture["num_query_groups"] // tensor)
    experts, chosen = architecture.get("num_moe_experts") or 0, architecture.get("moe_router_topk", 0)
    width = architecture["moe_ffn_hidden_size"] if experts else architecture["ffn_hidden_size"]
    return Sizes(
        rows=rows,
        inner_rows=inner_rows,
        all_rows=num_tokens,
        h=architecture["hidden_size"],
        q=heads * head_dim,
        kv=groups * head_dim,
        heads=heads,
        groups=groups,
        head_dim=head_dim,
        f=-(-width // (parallel.expert_tensor if experts else tensor)),
        experts=experts,
        chosen=chosen,
        expert_rows=rows * chosen * parallel.expert_tensor,
        has_qk_norm=bool(architecture.get("qk_layernorm")),
    )


def norm(rows: int, width: int, count: int, itemsize: int, *, fused: bool) -> int:
    """Kept by norms of `count` vectors a row that have `width` elements together."""
    return rows * (width * (itemsize if fused else 8) + 4 * count)


def layer(s: Sizes, itemsize: int, *, fused: bool) -> int:
    """Bytes that a layer keeps of a microbatch."""
    kept = 2 * norm(s.rows, s.h, 1, itemsize, fused=fused)
    kept += itemsize * (s.rows * s.h + s.inner_rows * s.q)  # what the two products of attention are of
    if s.has_qk_norm:
        kept += norm(s.inner_rows, s.q + s.kv, s.heads + s.groups, itemsize, fused=fused)
        if itemsize == 4 and not fused:  # the key's norm then keeps query and value too: all three are one tensor
            kept += s.inner_rows * 4 * (s.q + s.kv)
    kept += s.inner_rows * (itemsize * 4 * s.head_dim)  # rotary embedding: cos and sin, for query and key
    kept += s.inner_rows * (itemsize * 2 * (s.q + s.kv) + 4 * s.heads)  # q, k, v, the output, its normalizers
    if not fused:  # keys and values of the other context-parallel ranks
        kept += (s.all_rows - s.inner_rows) * itemsize * 2 * s.kv
    return kept + (_experts(s, itemsize) if s.experts else _mlp(s, itemsize))


def _experts(s: Sizes, itemsize: int) -> int:
    # the router: its input, logits of the chosen, their numbers, probabilities and the map of who goes where
    router = s.rows * (itemsize * s.h + 24 * s.chosen + 5 * s.experts)
    # of each pair: its input, fc1's 2f, silu, up, their product, that weighted, the weight
    return router + s.expert_rows * (itemsize * (s.h + 6 * s.f) + 4)


def _mlp(s: Sizes, itemsize: int) -> int:
    return itemsize * (s.rows * s.h + s.inner_rows * 5 * s.f)


def working(s: Sizes, itemsize: int) -> int:
    """Bytes that are alive while a layer is computed, forwards or backwards, beyond what is kept."""
    widest = s.expert_rows * max(s.h, 2 * s.f) if s.experts else s.inner_rows * max(s.h, 2 * s.f)
    return _WORKING_COPIES * widest * itemsize


def boundary(s: Sizes, itemsize: int) -> int:
    """Bytes of a layer's input: all that is kept of a layer which is computed again."""
    return s.rows * s.h * itemsize
