"""The tensors of a microbatch, for examples made by hand and for arbitrary shapes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_sspo.batching.context import zigzag
from megatron_sspo.batching.microbatch import make_microbatch
from tests.responses import response


def rollout(tokens, advantage=0.0, old=None):
    return response(tokens, rollout_log_probs=[-0.5 * t for t in tokens], advantage=advantage, old_log_probs=old)


TWO = [
    ((11, 12, 13), rollout([21, 22], 0.5, old=(-1.0, -2.0))),
    ((14,), rollout([23, 24, 25], -1.5, old=(-3.0, -4.0, -5.0))),
]


def test_two_sequences():
    microbatch = make_microbatch(TWO)
    assert microbatch.tokens.tolist() == [11, 12, 13, 21, 22, 14, 23, 24, 25]
    assert microbatch.position_ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert microbatch.cu_seqlens.tolist() == [0, 5, 9]
    assert microbatch.longest == 5
    # the row of a response token is the position of the token before it: 13, 21 | 14, 23, 24
    assert microbatch.response_rows.tolist() == [2, 3, 5, 6, 7]
    assert microbatch.response_tokens.tolist() == [21, 22, 23, 24, 25]
    assert microbatch.segments.ids.tolist() == [0, 0, 1, 1, 1]
    assert microbatch.segments.lengths.tolist() == [2, 3]
    assert microbatch.advantages.tolist() == [0.5, -1.5]
    assert microbatch.rollout_log_probs.tolist() == [-10.5, -11.0, -11.5, -12.0, -12.5]
    assert microbatch.old_log_probs is not None and microbatch.old_log_probs.tolist() == [-1, -2, -3, -4, -5]


@pytest.mark.parametrize(("multiple", "padding"), [(1, 0), (3, 0), (2, 1), (4, 3), (16, 7)])
def test_padding_is_the_last_section(multiple, padding):
    plain, padded = make_microbatch(TWO), make_microbatch(TWO, tensor_shards=multiple)
    assert padded.tokens.tolist() == plain.tokens.tolist() + [0] * padding
    assert padded.position_ids.tolist() == plain.position_ids.tolist() + list(range(padding))
    assert padded.cu_seqlens.tolist() == plain.cu_seqlens.tolist() + ([9 + padding] if padding else [])
    assert padded.longest == max(5, padding)
    for name in ("response_rows", "response_tokens", "advantages", "rollout_log_probs", "old_log_probs"):
        assert torch.equal(getattr(padded, name), getattr(plain, name)), name
    assert torch.equal(padded.segments.lengths, plain.segments.lengths)


@pytest.mark.parametrize("multiple", [1, 4])
def test_without_sequences_all_is_padding(multiple):
    microbatch = make_microbatch([], tensor_shards=multiple)
    assert microbatch.tokens.tolist() == [0] * multiple
    assert microbatch.cu_seqlens.tolist() == [0, multiple]
    assert microbatch.longest == multiple
    assert microbatch.segments.num_sequences == microbatch.segments.num_tokens == 0
    for name in ("response_rows", "response_tokens", "advantages", "rollout_log_probs"):
        assert getattr(microbatch, name).shape == (0,), name
    assert microbatch.response_rows.dtype == microbatch.response_tokens.dtype == torch.int64
    assert microbatch.advantages.dtype == microbatch.rollout_log_probs.dtype == torch.float32
    assert microbatch.old_log_probs.shape == microbatch.reference_log_probs.shape == (0,)


def test_an_empty_response_is_a_sequence_without_rows():
    microbatch = make_microbatch([TWO[0], ((15, 16), rollout([], 2.0, old=())), TWO[1]])
    assert microbatch.tokens.tolist() == [11, 12, 13, 21, 22, 15, 16, 14, 23, 24, 25]
    assert microbatch.cu_seqlens.tolist() == [0, 5, 7, 11]
    assert microbatch.response_rows.tolist() == [2, 3, 7, 8, 9]
    assert microbatch.segments.lengths.tolist() == [2, 0, 3]
    assert microbatch.advantages.tolist() == [0.5, 2.0, -1.5]


def test_observations_are_not_response_tokens():
    turns = replace(rollout([21, 22, 23, 24, 25], 0.5, old=(-1.0, -2.0, -3.0, -4.0, -5.0)), observed=((1, 3),))
    microbatch = make_microbatch([((11, 12), turns), TWO[1]])
    assert microbatch.tokens.tolist() == [11, 12, 21, 22, 23, 24, 25, 14, 23, 24, 25]
    assert microbatch.cu_seqlens.tolist() == [0, 7, 11]
    # 12 is followed by 21, and 23, the last token of the observation, by 24
    assert microbatch.response_rows.tolist() == [1, 4, 5, 7, 8, 9]
    assert microbatch.response_tokens.tolist() == [21, 24, 25, 23, 24, 25]
    assert microbatch.segments.lengths.tolist() == [3, 3]
    assert microbatch.rollout_log_probs.tolist() == [-10.5, -12.0, -12.5, -11.5, -12.0, -12.5]
    assert microbatch.old_log_probs is not None and microbatch.old_log_probs.tolist() == [-1, -4, -5, -3, -4, -5]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_old_log_probs_on_some_are_an_error(order):
    sequences = [TWO[0], ((1,), rollout([2, 3]))]
    with pytest.raises(ValueError, match="some rollouts of a batch have old_log_probs and some have none"):
        make_microbatch([sequences[i] for i in order])


def test_advantages_of_tokens():
    of_tokens = [(tokens, replace(r, token_advantages=np.arange(len(r.tokens)))) for tokens, r in TWO]
    assert make_microbatch(of_tokens).token_advantages.tolist() == [0, 1, 0, 1, 2]
    assert make_microbatch(TWO).token_advantages is None and make_microbatch([]).token_advantages is None
    with pytest.raises(ValueError, match="some rollouts of a batch have token_advantages and some have none"):
        make_microbatch([of_tokens[0], TWO[1]])


def test_a_response_to_an_empty_prompt_is_an_error():
    with pytest.raises(ValueError, match="the prompt of rollout 1 is empty"):
        make_microbatch([TWO[0], ((), TWO[1][1]), TWO[0]])


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.lists(st.integers(0, 99), max_size=9))),
    st.integers(1, 9),
)
def test_rows_predict_the_response_and_sections_are_the_sequences(pairs, multiple):
    microbatch = make_microbatch([(tuple(p), rollout(r)) for p, r in pairs], tensor_shards=multiple)
    tokens, borders = microbatch.tokens, microbatch.cu_seqlens.tolist()
    assert len(tokens) % multiple == 0 and borders[-1] == len(tokens) and len(tokens) > 0
    assert torch.equal(tokens[microbatch.response_rows + 1], microbatch.response_tokens)
    sections = [tokens[a:b].tolist() for a, b in pairwise(borders)]
    assert sections[: len(pairs)] == [p + r for p, r in pairs]
    assert all(sections) and microbatch.longest == max(map(len, sections))
    responses = microbatch.response_tokens.split(microbatch.segments.lengths.tolist()) if pairs else ()
    assert [part.tolist() for part in responses] == [r for _, r in pairs]


def observed(length):
    """Returns the span of an observation in the middle of a response; none if the response is too short."""
    return ((length // 3, length - 1),) if length > 3 else ()


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.lists(st.integers(0, 99), max_size=9))),
    st.integers(2, 4),
    st.integers(1, 3),
)
def test_context_parallel_shares_make_up_the_whole_row(pairs, size, shards):
    sequences = [(tuple(p), replace(rollout(r), observed=observed(len(r)))) for p, r in pairs]
    whole = make_microbatch(sequences)
    shares = [
        make_microbatch(sequences, tensor_shards=shards, context_rank=rank, context_size=size) for rank in range(size)
    ]
    assert len({len(share.tokens) for share in shares}) == 1 and len(shares[0].tokens) % shards == 0
    for rank, share in enumerate(shares):
        assert share.context_counts[rank] == len(share.response_rows)
        assert share.cu_seqlens.tolist() == shares[0].cu_seqlens.tolist()
        assert torch.equal(share.segments.lengths, whole.segments.lengths)
        assert torch.equal(share.rollout_log_probs, whole.rollout_log_probs)
    gathered = torch.cat([share.response_tokens for share in shares])
    assert torch.equal(gathered[shares[0].context_order], whole.response_tokens)
    # the ranks together hold every position of every sequence once, with its position id and its token
    positions = sorted(p for share in shares for p in share.position_ids.tolist())
    lengths = shares[0].cu_seqlens.diff().tolist()
    assert positions == sorted(p for length in lengths for p in range(length))
    held = sorted(t for share in shares for t in share.tokens.tolist())
    assert held == sorted(whole.tokens.tolist() + [0] * (len(held) - len(whole.tokens)))


def test_context_parallel_ranks_have_equal_work_in_causal_attention():
    work = [int((zigzag([0, 48], rank, 4) + 1).sum()) for rank in range(4)]
    assert len(set(work)) == 1


SHARED = [
    ((11, 12, 13), rollout([21, 22], 0.5)),
    ((11, 12, 13), rollout([], 1.0)),
    ((11, 12, 13), rollout([23], -1.5)),
    ((14,), rollout([24, 25])),
]


def test_a_shared_prompt_is_in_the_row_once():
    microbatch = make_microbatch(SHARED, sharing=[3, 1])
    assert microbatch.tokens.tolist() == [11, 12, 13, 21, 22, 13, 13, 23, 14, 24, 25]
    assert microbatch.position_ids.tolist() == [0, 1, 2, 3, 4, 2, 2, 3, 0, 1, 2]
    assert microbatch.cu_seqlens.tolist() == [0, 2, 5, 6, 8, 11]
    assert microbatch.response_rows.tolist() == [2, 3, 6, 8, 9]
    assert microbatch.response_tokens.tolist() == [21, 22, 23, 24, 25]
    assert microbatch.segments.lengths.tolist() == [2, 0, 1, 2]
    pieces = microbatch.pieces
    assert pieces is not None and (pieces.max_queries, pieces.max_keys) == (3, 5)
    assert pieces.cu_queries.tolist() == [0, 2, 5, 6, 8, 11]
    keys = [rows.tolist() for rows in pieces.key_rows.tensor_split(pieces.cu_keys[1:-1].long())]
    assert keys == [[0, 1], [0, 1, 2, 3, 4], [0, 1, 5], [0, 1, 6, 7], [8, 9, 10]]


groups_of_one_prompt = st.lists(
    st.tuples(
        st.lists(st.integers(1, 99), min_size=1, max_size=6),
        st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@given(groups_of_one_prompt, st.integers(1, 3), st.integers(1, 3))
def test_every_token_attends_to_what_is_before_it_in_its_sequence(groups, size, shards):
    sequences = [(tuple(prompt), rollout(response)) for prompt, responses in groups for response in responses]
    options = {"sharing": [len(responses) for _, responses in groups], "tensor_shards": shards, "context_size": size}
    shares = [make_microbatch(sequences, context_rank=rank, **options) for rank in range(size)]
    held = torch.cat([share.tokens for share in shares])
    whole = [torch.cat(values) for values in zip(*[(s.position_ids, s.is_padding) for s in shares], strict=True)]
    expected = sorted(tuple(p + r[: n + 1]) for p, rs in groups for r in rs for n in range(-1, len(r)))
    found = []
    for share in shares:
        if share.pieces is None:
            return
        queries, keys = share.pieces.cu_queries.tolist(), share.pieces.cu_keys.tolist()
        for piece in range(len(queries) - 1):
            rows = share.pieces.key_rows[keys[piece] : keys[piece + 1]]
            for query in range(queries[piece], queries[piece + 1]):
                seen = rows[: len(rows) - (queries[piece + 1] - 1 - query)]
                assert whole[0][seen[-1]] == share.position_ids[query]
                if not share.is_padding[query]:
                    assert whole[0][seen].tolist() == list(range(len(seen))) and not whole[1][seen].any()
                    found.append(tuple(held[seen].tolist()))
    # the prompts' own tokens come once each where they are shared
    assert set(expected) <= set(found) and len(found) <= sum(len(p) + len(r) for p, rs in groups for r in rs)
