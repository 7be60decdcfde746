"""Laws of the packing, for arbitrary lengths, numbers of ranks and token limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_sspo.batching.pack import pack
from megatron_sspo.errors import UserError

lengths_and_caps = st.integers(1, 300).flatmap(
    lambda cap: st.tuples(st.lists(st.integers(1, cap), max_size=60), st.just(cap))
)
ranks = st.integers(1, 9)
multiples = st.integers(1, 5)


def tokens(lengths, members):
    return sum(lengths[i] for i in members)


@given(lengths_and_caps, ranks, multiples, st.none() | st.integers(0, 3))
def test_every_index_once_within_max_tokens_and_equal_counts_on_all_ranks(given_lengths, num_ranks, multiple_of, power):
    """Packing by work, too, makes no more microbatches than packing by tokens."""
    lengths, cap = given_lengths
    layout = {"num_ranks": num_ranks, "max_tokens": cap, "multiple_of": multiple_of}
    work = None if power is None else [length**power for length in lengths]
    plan = pack(lengths, **layout, work=work)
    assert len(plan) == num_ranks
    assert sorted(i for rank in plan for members in rank for i in members) == list(range(len(lengths)))
    assert all(tokens(lengths, members) <= cap for rank in plan for members in rank)
    (count,) = {len(rank) for rank in plan}
    assert count % multiple_of == 0 and count <= len(pack(lengths, **layout)[0])
    assert pack(lengths, **layout, work=work) == plan


@given(lengths_and_caps, ranks)
def test_ranks_differ_by_at_most_the_longest_sequence(given_lengths, num_ranks):
    lengths, cap = given_lengths
    plan = pack(lengths, num_ranks=num_ranks, max_tokens=cap)
    longest = max(lengths, default=0)
    totals = [sum(tokens(lengths, members) for members in rank) for rank in plan]
    assert max(totals) - min(totals) <= longest
    at_once = [[tokens(lengths, members) for members in column] for column in zip(*plan, strict=True)]
    assert all(max(column) - min(column) <= longest for column in at_once)


@given(lengths_and_caps, ranks)
def test_fewer_than_twice_the_minimal_number_of_microbatches(given_lengths, num_ranks):
    # filling the emptiest bin fails only if every microbatch is more than half full, or holds a long sequence
    lengths, cap = given_lengths
    fewest = max(1, -(-sum(lengths) // (cap * num_ranks)))
    assert len(pack(lengths, num_ranks=num_ranks, max_tokens=cap)[0]) <= 2 * fewest


def test_no_sequences_give_one_empty_microbatch_per_rank():
    assert pack([], num_ranks=3, max_tokens=10) == [[[]]] * 3
    assert pack([], num_ranks=1, max_tokens=10, multiple_of=2) == [[[], []]]


def test_fewer_sequences_than_ranks_give_empty_microbatches():
    assert pack([5, 7], num_ranks=3, max_tokens=10) == [[[1]], [[0]], [[]]]


def test_a_sequence_above_max_tokens_is_an_error_that_names_it():
    with pytest.raises(UserError, match="sequence 1 has 11 tokens, more than tokens_per_microbatch=10"):
        pack([10, 11, 3], num_ranks=2, max_tokens=10)


def test_ranks_wait_less_for_each_other_by_work_than_by_tokens():
    lengths = ((np.random.default_rng(0).pareto(1.3, 2048) + 1) * 600).clip(1, 16_384).astype(int).tolist()
    work = [length * (24_576 + length) for length in lengths]

    def efficiency(plan):
        loads = [[sum(work[i] for i in members) for members in rank] for rank in plan]
        return sum(work) / (len(plan) * sum(max(at_once) for at_once in zip(*loads, strict=True)))

    by_tokens = efficiency(pack(lengths, num_ranks=16, max_tokens=16_384))
    by_work = efficiency(pack(lengths, num_ranks=16, max_tokens=16_384, work=work))
    assert by_tokens < 0.87 and by_work > 0.97
