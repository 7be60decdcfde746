"""Attention and normalization of the local layer spec: packed sequences without Transformer Engine, on any device."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, reduce_from_tensor_model_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import is_layer_window_attention, make_sharded_tensors_for_checkpoint

from megatron_sspo.batching.row import Pieces, Section, pieces_of
from megatron_sspo.batching.work import QUERIES_AT_ONCE
from megatron_sspo.policy.shared_prompts.keys import gather_context, take
from megatron_sspo.policy.shared_prompts.packed import RowParams, SharedSeqParams
from megatron_sspo.policy.shared_prompts.padding import PaddedPieces
from megatron_sspo.policy.shared_prompts.rotary import rotate

# the factor by which padding may multiply the products of attention, so that one call computes all sequences
_MAX_PADDING = 1.3
_SHORT = 64  # tokens; up to this length one padded call is not slower than a call for each: benchmarks/attention.py
# multiplications with queries that take as long as a call does beside them: benchmarks/attention.py
_MULTIPLICATIONS_PER_CALL = 400_000


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm, marked for sequence parallelism (Megatron's own wrapper refuses sequence parallelism).

    With `layernorm_zero_centered_gamma` the weight is kept minus 1, and the norm is taken in float32.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]
        self.is_zero_centered = config.layernorm_zero_centered_gamma

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_zero_centered:
            return super().forward(x)
        return F.rms_norm(x.float(), self.normalized_shape, 1 + self.weight.float(), self.eps).type_as(x)


class NormOfQueries(RMSNorm):
    """The norm of a token's queries of all heads together, x / √(mean of the squares of x + ε) · w.

    A tensor-parallel rank has some of the heads, and the whole w: Megatron sums the gradients of `q_layernorm` and
    `k_layernorm` over these ranks.
    """

    heads = "num_attention_heads"

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(config, hidden_size * getattr(config, self.heads), eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the norm of x [T, 1, heads of this rank, d]."""
        squares = x.float().square().sum(dim=(-2, -1), keepdim=True)
        # the sum over all ranks, whose gradient is the sum of those of all ranks
        squares = copy_to_tensor_model_parallel_region(reduce_from_tensor_model_parallel_region(squares))
        rank = parallel_state.get_tensor_model_parallel_rank()
        weight = self.weight.view(-1, *x.shape[-2:])[rank]
        return (x.float() * torch.rsqrt(squares / self.weight.numel() + self.eps)).type_as(x) * weight


class NormOfKeys(NormOfQueries):
    """The norm of a token's keys of all heads together."""

    heads = "num_query_groups"


class PackedAttention(MegatronModule):
    """Causal attention inside each packed sequence, by torch's scaled_dot_product_attention.

    Megatron's own local attention refuses packed sequences. Here `query [T, heads, d]`, `key` and `value
    [T, groups, d]` hold concatenated sequences with the borders `packed_seq_params.cu_seqlens_q`. Under context
    parallelism T counts this rank's share of the tokens (`batching/context.py`), and the borders are those of the whole
    row. In a row with shared prompts, the tokens of a response attend to their prompt as well. If the row has a
    rotation, queries and keys are turned by it here; otherwise Megatron has done so.

    With the fields that Megatron's own attention has for it, a layer attends to a window of the last tokens, and each
    head has a sink, a logit of its softmax for which there is no token.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: Any,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(config.kv_channels)
        self.dropout = config.attention_dropout
        has_window = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = config.window_size[0] + 1 if has_window else None  # tokens, the query's own among them
        self.softmax_offset = None
        if config.softmax_type == "learnable":
            num_heads = config.num_attention_heads // config.tensor_model_parallel_size
            self.softmax_offset = torch.nn.Parameter(torch.zeros(num_heads, dtype=config.params_dtype))

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any = None,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """Returns the output of attention, [T, heads · d]."""
        if isinstance(packed_seq_params, RowParams) and packed_seq_params.rotation is not None:
            query, key = (rotate(values, packed_seq_params.rotation) for values in (query, key))
        if isinstance(packed_seq_params, SharedSeqParams):
            assert packed_seq_params.pieces is not None
            key, value = gather_context(key), gather_context(value)
            if packed_seq_params.pieces.padding * query[0].numel() <= _MULTIPLICATIONS_PER_CALL:
                return self._padded_pieces(query, key, value, packed_seq_params.padded)
            return self._pieces(query, key, value, packed_seq_params.pieces)
        if (num_ranks := parallel_state.get_context_parallel_world_size()) > 1:
            sections = [Section(*borders, 0, 0) for borders in pairwise(packed_seq_params.cu_seqlens_q.tolist())]
            pieces = pieces_of(sections, parallel_state.get_context_parallel_rank(), num_ranks).to(key.device)
            return self._pieces(query, gather_context(key), gather_context(value), pieces)
        lengths = packed_seq_params.cu_seqlens_q.diff()
        longest = int(packed_seq_params.max_seqlen_q)
        # padding costs products; those of short sequences cost no more than a call per sequence
        if longest <= _SHORT or longest**2 * len(lengths) <= _MAX_PADDING * int(lengths.square().sum()):
            return self._padded(query, key, value, lengths, longest)
        return self._one_by_one(query, key, value, lengths.tolist())

    def _padded(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor, longest: int
    ) -> torch.Tensor:
        """Attends in one call for all sequences, padded on the right, where the causal mask hides padding."""
        is_token = torch.arange(longest, device=query.device) < lengths[:, None]  # [S, longest]

        def pad(packed: torch.Tensor) -> torch.Tensor:  # [T, h, d] -> [S, h, longest, d]
            padded = packed.new_zeros(*is_token.shape, *packed.shape[1:])
            padded[is_token] = packed
            return padded.transpose(1, 2)

        output = self._attend(pad(query), pad(key), pad(value)).transpose(1, 2)  # [S, longest, h, d]
        return output[is_token].flatten(1)

    def _one_by_one(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int]
    ) -> torch.Tensor:
        """Attends in one call per sequence, for batches whose padding would cost too much."""
        outputs = [
            self._attend_one(*sequence)
            for sequence in zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
        ]
        return torch.cat(outputs).flatten(1)

    def _pieces(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pieces: Pieces) -> torch.Tensor:
        """Attends piece by piece, each to its own copies of keys and values."""
        key, value = take(key, pieces.key_rows), take(value, pieces.key_rows)
        queries, keys = pieces.cu_queries.diff().tolist(), pieces.cu_keys.diff().tolist()
        outputs = [
            output
            for piece in zip(query.split(queries), key.split(keys), value.split(keys), strict=True)
            for output in self._attend_from_the_end(*piece)
        ]
        return torch.cat(outputs).flatten(1)

    def _padded_pieces(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, padded: Sequence[PaddedPieces]
    ) -> torch.Tensor:
        """Attends in one call for the pieces that begin a sequence, and in one for those that continue one."""
        outputs = []
        for part in padded:
            num_pieces, max_queries, max_keys = part.shape
            queries = query.new_zeros(num_pieces * max_queries, *query.shape[1:])
            queries = queries.index_copy(0, part.places, query.index_select(0, part.queries))
            keys, values = take(key, part.key_rows), take(value, part.key_rows)
            output = self._attend(
                queries.unflatten(0, (num_pieces, max_queries)).transpose(1, 2),
                keys.unflatten(0, (num_pieces, max_keys)).transpose(1, 2),
                values.unflatten(0, (num_pieces, max_keys)).transpose(1, 2),
                None if part.mask is None else part.mask.to(query.dtype),
            )
            output = output.transpose(1, 2).flatten(0, 1)  # [n·Q, h, d]
            outputs.append(output.index_select(0, part.places))
        order = torch.cat([part.queries for part in padded]).argsort()
        return torch.cat(outputs).index_select(0, order).flatten(1)

    def _attend_from_the_end(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        """Attends causally where the last query attends to the last key; returns the output in parts."""
        before = len(key) - len(query)
        if not before:
            return [self._attend_one(query, key, value)]
        outputs = []
        for block in query.split(QUERIES_AT_ONCE):
            seen = torch.ones(len(block), before + len(block), dtype=torch.bool, device=query.device).tril_(before)
            before += len(block)
            outputs.append(self._attend_one(block, key[:before], value[:before], seen))
        return outputs

    def _attend_one(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attends within one sequence: [L, h, d] -> [L, h, d]."""
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
        return self._attend(query, key, value, seen).squeeze(0).transpose(0, 1)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attends from [S, h, Q, d] to [S, g, K, d]; `seen` is causal, in true and false or in 0 and -inf."""
        if self.window is not None or self.softmax_offset is not None:
            seen = self._mask(seen, query, key.size(2))
        if self.softmax_offset is not None:
            key, value = (F.pad(part, (0, 0, 0, 1)) for part in (key, value))
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen,
            is_causal=seen is None,
            scale=self.scale,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=query.size(1) != key.size(1),
        )

    def _mask(self, seen: torch.Tensor | None, query: torch.Tensor, num_keys: int) -> torch.Tensor:
        """Returns what is added to the logits: -inf behind the window, and a last column with the sinks."""
        shown = torch.ones(query.size(2), num_keys, dtype=torch.bool, device=query.device).tril_()
        if seen is not None:
            shown = seen if seen.dtype == torch.bool else torch.eq(seen, 0)
        if self.window is not None:  # a query sees the keys up to its own, so their number is its place
            last = shown.sum(dim=-1, keepdim=True) - 1
            shown = shown & (torch.arange(num_keys, device=shown.device) > last - self.window)
        mask = torch.zeros(shown.shape, dtype=query.dtype, device=query.device)
        mask = mask.masked_fill_(torch.logical_not(shown), float("-inf"))
        if self.softmax_offset is None:
            return mask
        sinks = self.softmax_offset[:, None, None]
        while mask.dim() < query.dim():
            mask = mask[None]
        mask = mask.expand(-1, query.size(1), -1, -1)
        return torch.cat([mask, sinks.expand(*mask.shape[:-1], 1)], dim=-1)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: dict | None = None
    ) -> dict[str, Any]:
        """Returns the sinks' shards, as Megatron's own attention does."""
        found = {} if self.softmax_offset is None else {"softmax_offset": self.softmax_offset}
        return make_sharded_tensors_for_checkpoint(found, prefix, {"softmax_offset": 0}, sharded_offsets)
