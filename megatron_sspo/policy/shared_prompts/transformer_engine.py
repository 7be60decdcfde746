"""Attention of rows with shared prompts by Transformer Engine.

A piece of queries has a list of keys, and is causal and aligned at its end. That is what FlashAttention and cuDNN
compute of packed sequences with other borders for keys than for queries ("padding_causal_bottom_right"), so one call
takes all pieces. Transformer Engine refuses this mask together with its own context parallelism; here it is told of
none, and the keys and values of all context-parallel ranks are gathered beforehand.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from megatron_sspo.batching.row import Pieces, Section, pieces_of
from megatron_sspo.errors import first_line
from megatron_sspo.policy.shared_prompts.keys import copied_again_in_backward, gather_context, take
from megatron_sspo.policy.shared_prompts.packed import SharedSeqParams
from megatron_sspo.processes import agree

_LARGEST_ERROR = 0.05  # of the check at the start, in units of the largest value; bfloat16 has two to three digits
_SECTIONS = (Section(0, 150, 0, 0), Section(150, 222, 150, 0), Section(222, 260, 150, 0), Section(260, 333, 0, 0))


class SharedPromptAttention:
    """A mixin for Megatron's attention by Transformer Engine: see `with_shared_prompts`."""

    stock: type

    def forward(
        self, query: Any, key: Any, value: Any, *args: Any, packed_seq_params: Any = None, **options: Any
    ) -> torch.Tensor:
        """Returns the output of attention, [T, heads · d]."""
        if not isinstance(packed_seq_params, SharedSeqParams):
            stock: Any = super()
            return stock.forward(query, key, value, *args, packed_seq_params=packed_seq_params, **options)
        assert packed_seq_params.pieces is not None
        return self.attend(query, gather_context(key), gather_context(value), packed_seq_params.pieces)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pieces: Pieces) -> torch.Tensor:
        """Attends to the keys of all context-parallel ranks, by Transformer Engine's own module."""
        transformer_engine: Any = super(self.stock, self)  # Megatron's `forward` knows no such mask
        key_copies, value_copies = take(key, pieces.key_rows), take(value, pieces.key_rows)
        copies = ((key, key_copies), (value, value_copies))
        with _without_context_parallelism(self), copied_again_in_backward(copies, pieces.key_rows):
            return transformer_engine.forward(
                query,
                key_copies,
                value_copies,
                None,
                qkv_format="thd",
                attn_mask_type="padding_causal_bottom_right",
                cu_seqlens_q=pieces.cu_queries,
                cu_seqlens_kv=pieces.cu_keys,
                max_seqlen_q=pieces.max_queries,
                max_seqlen_kv=pieces.max_keys,
            )


def with_shared_prompts(stock: type) -> type:
    """Returns Megatron's attention class with a `forward` that takes rows with shared prompts too.

    The layers of a specification may be one object (megatron-core 0.16 to 0.19), so the class may have been changed
    already.
    """
    if issubclass(stock, SharedPromptAttention):
        return stock
    return type("SharedPromptAttention", (SharedPromptAttention, stock), {"stock": stock})


def refusal_of_any_rank(chunks: Sequence[Any], device: torch.device) -> str:
    """Returns why Transformer Engine cannot share prompts in rows on some rank; "" if it can. A collective."""
    modules = (module for chunk in chunks for module in chunk.modules())
    layers = [m for m in modules if isinstance(getattr(m, "core_attention", None), SharedPromptAttention)]
    reasons = agree.all_gather_objects(refusal(layers[0], device) if layers else "")
    return next(filter(None, reasons), "")


def refusal(layer: Any, device: torch.device) -> str:
    """Returns why Transformer Engine cannot compute rows with shared prompts on this rank; "" if it can.

    The layer attends forward and backward within a small row, and the result is compared with plain attention.
    """
    heads, groups = layer.num_attention_heads_per_partition, layer.num_query_groups_per_partition
    # latent attention has another width of values, and a scale of its own
    width = getattr(layer, "q_head_dim", layer.hidden_size_per_attention_head)
    of_values = layer.config.v_head_dim if hasattr(layer, "q_head_dim") else width
    scale = getattr(layer, "softmax_scale", None) or layer.config.softmax_scale or width**-0.5
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(_SECTIONS[-1].stop, *shape, generator=generator).to(device, layer.config.params_dtype)
        for shape in ((heads, width), (groups, width), (groups, of_values), (heads, of_values))
    ]
    pieces = pieces_of(_SECTIONS, 0, 1).to(device)
    try:
        found = _with_gradients(layer.core_attention.attend, inputs, pieces)
    except Exception as error:  # of many kinds: an assertion, no kernel for the mask, an error of CUDA
        return first_line(error)
    expected = _with_gradients(partial(_plain, scale=scale), [values.float() for values in inputs], pieces)
    for name, one, other in zip(("output", "query", "key", "value"), found, expected, strict=True):
        error = float((one.float() - other).abs().max() / other.abs().max())
        if not error < _LARGEST_ERROR:  # also if it is not a number
            return f"the {name if name == 'output' else f'gradient of the {name}'} is wrong by {error:.0%}"
    return ""


def _with_gradients(attend: Any, inputs: Sequence[torch.Tensor], pieces: Pieces) -> list[torch.Tensor]:
    """Returns the output and its gradients by query, key and value; the last input is the output's gradient."""
    leaves = [values.clone().requires_grad_() for values in inputs[:3]]
    with torch.enable_grad():
        output = attend(*leaves, pieces)
        return [output.detach(), *torch.autograd.grad(output, leaves, inputs[3].reshape(output.shape))]


def _plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pieces: Pieces, scale: float) -> torch.Tensor:
    """Attends by a softmax over whole rows of scores."""
    borders, outputs = pieces.cu_keys.tolist(), []
    repeats = query.size(1) // key.size(1)
    for number, part in enumerate(query.split(pieces.cu_queries.diff().tolist())):
        rows = pieces.key_rows[borders[number] : borders[number + 1]]
        keys, values = (tensor[rows].repeat_interleave(repeats, dim=1) for tensor in (key, value))
        scores = scale * torch.einsum("qhd,khd->hqk", part, keys)
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1 + len(rows) - len(part))
        outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values))
    return torch.cat(outputs).flatten(1)


@contextmanager
def _without_context_parallelism(module: Any) -> Iterator[None]:
    """Removes the context-parallel group from a module of Transformer Engine, and restores it at the end."""
    held = {name: getattr(module, name) for name in ("cp_group", "cp_global_ranks", "cp_stream")}
    for name in held:
        setattr(module, name, None)
    try:
        yield
    finally:
        for name, value in held.items():
            setattr(module, name, value)
