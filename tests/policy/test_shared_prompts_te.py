"""Attention of rows with shared prompts by Transformer Engine, with stand-ins for its module and Megatron's."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from megatron_sspo.batching.row import Section, pieces_of
from megatron_sspo.policy.shared_prompts.keys import copied_again_in_backward, take
from megatron_sspo.policy.shared_prompts.packed import SharedSeqParams
from megatron_sspo.policy.shared_prompts.transformer_engine import _plain, refusal, with_shared_prompts

ROW = (Section(0, 5, 0, 0), Section(5, 9, 5, 0), Section(9, 16, 5, 0), Section(16, 19, 0, 0))
ALIGNED = "padding_causal_bottom_right"


class StandIn(torch.nn.Module):
    """Transformer Engine's attention: packed sequences, each with its own number of keys."""

    cp_group = "group"
    cp_global_ranks = "ranks"
    cp_stream = "stream"
    scale = None

    def forward(
        self,
        query,
        key,
        value,
        mask,
        *,
        qkv_format,
        attn_mask_type,
        cu_seqlens_q,
        cu_seqlens_kv,
        max_seqlen_q,
        max_seqlen_kv,
    ):
        assert (qkv_format, mask) == ("thd", None)
        assert self.cp_group is self.cp_global_ranks is self.cp_stream is None
        queries, keys = cu_seqlens_q.diff().tolist(), cu_seqlens_kv.diff().tolist()
        assert max_seqlen_q == max(queries) and max_seqlen_kv == max(keys)
        assert all(q <= k for q, k in zip(queries, keys, strict=True))
        outputs = []
        for q, k, v in zip(query.split(queries), key.split(keys), value.split(keys), strict=True):
            shift = len(k) - len(q) if attn_mask_type == ALIGNED else 0
            seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(shift)
            parts = [part.transpose(0, 1)[None] for part in (q, k, v)]
            out = F.scaled_dot_product_attention(*parts, attn_mask=seen, enable_gqa=True, scale=self.scale)
            outputs.append(out[0].transpose(0, 1))
        return torch.cat(outputs).flatten(1)


class Stock(StandIn):
    """Megatron's, whose `forward` has other arguments."""

    def forward(self, query, key, value, attention_mask=None, attn_mask_type=None, packed_seq_params=None):
        return "separate rows"


class Layer(torch.nn.Module):
    num_attention_heads_per_partition = 4
    num_query_groups_per_partition = 2
    hidden_size_per_attention_head = 16

    class config:
        params_dtype = torch.bfloat16
        softmax_scale = None

    def __init__(self, stock):
        super().__init__()
        self.core_attention = with_shared_prompts(stock)()


class LatentLayer(Layer):
    """Megatron's latent attention: heads without groups, of another width for values, and YaRN's scale."""

    num_query_groups_per_partition = 4
    q_head_dim = 24
    softmax_scale = 0.4

    class config(Layer.config):
        v_head_dim = 16


def row(heads=4, groups=2):
    generator = torch.Generator().manual_seed(0)
    shapes = [(heads, 8), (groups, 8), (groups, 8)]
    return [torch.randn(19, *shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def test_pieces_attend_as_packed_sequences_with_more_keys_than_queries():
    attention, inputs, pieces = with_shared_prompts(Stock)(), row(), pieces_of(ROW, 0, 1)
    found = attention(*inputs, None, packed_seq_params=SharedSeqParams(pieces=pieces))
    expected = _plain(*inputs, pieces, 8**-0.5)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    gradients = [torch.autograd.grad(output, inputs, upstream) for output in (found, expected)]
    torch.testing.assert_close(*gradients)  # those of keys and values are added up in float32
    assert attention.cp_group == "group" and attention.cp_stream == "stream"


def test_copies_are_not_kept_for_the_backward_pass():
    values = torch.randn(3, 4, requires_grad=True)
    rows = torch.tensor([2, 0, 2, 1])
    copies = take(values, rows)
    with copied_again_in_backward([(values, copies)], rows):
        total = (copies[1:].t() ** 2).sum()
    gone = weakref.ref(copies.untyped_storage())
    expected = 2 * torch.tensor([1, 1, 1])[:, None] * values.detach()
    del copies
    assert gone() is None
    total.backward()
    torch.testing.assert_close(values.grad, expected)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_attention_that_is_computed_again_in_the_backward_pass(use_reentrant):
    attention, inputs, pieces = with_shared_prompts(Stock)(), row(), pieces_of(ROW, 0, 1)

    def attend(*values):
        return attention(*values, None, packed_seq_params=SharedSeqParams(pieces=pieces))

    expected = _plain(*inputs, pieces, 8**-0.5)
    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, inputs, upstream)
    found = checkpoint(attend, *inputs, use_reentrant=use_reentrant)
    found.backward(upstream)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(tuple(values.grad for values in inputs), gradients)


@pytest.mark.parametrize(("kind", "scale"), [(Layer, None), (LatentLayer, 0.4)])
def test_the_check_at_the_start_accepts_what_is_right(monkeypatch, kind, scale):
    monkeypatch.setattr(StandIn, "scale", scale)
    assert refusal(kind(Stock), torch.device("cpu")) == ""


@pytest.mark.parametrize("wrong", ["aligned at the beginning", "the gradient of half of the keys"])
def test_the_check_at_the_start_finds_wrong_results(wrong):
    class Wrong(StandIn):
        def forward(self, query, key, value, mask, *, attn_mask_type, **options):
            if wrong == "aligned at the beginning":
                return super().forward(query, key, value, mask, attn_mask_type="causal", **options)
            half = torch.cat([key[: len(key) // 2].detach(), key[len(key) // 2 :]])
            return super().forward(query, half, value, mask, attn_mask_type=attn_mask_type, **options)

    class Megatron(Wrong):
        pass

    expected = (
        "the output is wrong by" if wrong == "aligned at the beginning" else "the gradient of the key is wrong by"
    )
    assert refusal(Layer(Megatron), torch.device("cpu")).startswith(expected)
