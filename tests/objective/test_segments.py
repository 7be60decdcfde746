"""Segments: the reductions against Python loops, and errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_sspo.objective import Segments

DTYPES = [torch.float32, torch.float64]


def test_ids_name_the_sequence_of_each_token():
    segments = Segments.from_lengths([2, 0, 3])
    assert segments.ids.tolist() == [0, 0, 2, 2, 2]
    assert segments.lengths.tolist() == [2, 0, 3]
    assert (segments.num_sequences, segments.num_tokens) == (3, 5)
    assert segments.ids.dtype == segments.lengths.dtype == torch.int64


@pytest.mark.parametrize("lengths", [(2, 0, 3), torch.tensor([2, 0, 3]), torch.tensor([2, 0, 3], dtype=torch.int32)])
def test_lengths_may_be_a_sequence_or_a_tensor(lengths):
    assert Segments.from_lengths(lengths, device="cpu").ids.tolist() == [0, 0, 2, 2, 2]


def test_to_moves_both_tensors():
    moved = Segments.from_lengths([1, 2]).to("meta")
    assert moved.ids.device.type == moved.lengths.device.type == "meta"


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(0, 6), max_size=8), seed=st.integers(0, 1000))
def test_reductions_and_their_gradients_match_a_loop(lengths, seed):
    segments = Segments.from_lengths(lengths)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(lengths), dtype=torch.float64, generator=generator).requires_grad_()
    upstream = torch.randn(len(lengths), dtype=torch.float64, generator=generator)
    for reduce, of_one in (
        (segments.sum, lambda part: part.sum()),
        (segments.mean, lambda part: part.sum() / max(len(part), 1)),
    ):
        expected = [of_one(part) for part in values.split(lengths)] if lengths else []
        expected = torch.stack(expected) if expected else values.new_zeros(0)
        actual = reduce(values)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        if lengths:
            expected_gradient = torch.autograd.grad((expected * upstream).sum(), values)[0]
            actual_gradient = torch.autograd.grad((actual * upstream).sum(), values)[0]
            torch.testing.assert_close(actual_gradient, expected_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_no_tokens_give_zeros_that_still_reach_the_graph(lengths, dtype):
    segments = Segments.from_lengths(lengths)
    values = torch.zeros(0, dtype=dtype, requires_grad=True)
    for reduce in (segments.sum, segments.mean):
        result = reduce(values)
        assert result.tolist() == [0.0] * len(lengths)
        (gradient,) = torch.autograd.grad(result.sum(), values)
        assert gradient.shape == (0,)


def test_max_of_an_empty_sequence_is_minus_infinity():
    segments = Segments.from_lengths([2, 0, 1])
    assert segments.max(torch.tensor([-3.0, -2.0, 5.0])).tolist() == [-2.0, -float("inf"), 5.0]


def test_half_precision_is_summed_in_float32():
    segments = Segments.from_lengths([4096])
    total = segments.sum(torch.ones(4096, dtype=torch.bfloat16))
    assert total.dtype == torch.float32
    assert total.item() == 4096  # bf16 cannot count past 256


def test_many_values_in_float32_are_summed_in_float64():
    count = 65_000
    mean = Segments.from_lengths([count]).mean(torch.full((count,), 0.1))
    assert mean.dtype == torch.float32 and mean.item() == pytest.approx(0.1, rel=1e-6)
