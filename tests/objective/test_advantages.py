"""Advantages: laws, references, and errors."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_sspo.objective import group_centered, group_relative, leave_one_out
from megatron_sspo.objective.advantages import (
    gdpo,
    max_rl,
    opo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    whiten,
)

ALL = [group_relative, group_centered, leave_one_out]
every = pytest.mark.parametrize("advantage", ALL)

rewards_of_a_group = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0]), min_size=2, max_size=16)


def test_group_relative_divides_by_the_sample_standard_deviation():
    # Mean 1, squared deviations 1 + 0 + 0 + 1 = 2, over G − 1 = 3.
    actual = group_relative(torch.tensor([0.0, 1.0, 1.0, 2.0], dtype=torch.float64))
    assert actual.tolist() == pytest.approx([-((3 / 2) ** 0.5), 0.0, 0.0, (3 / 2) ** 0.5], rel=1e-14)


def test_group_centered_does_not_divide():
    rewards = torch.tensor([0.0, 1.0, 1.0, 2.0])
    assert group_centered(rewards).tolist() == [-1.0, 0.0, 0.0, 1.0]
    assert group_relative(rewards, divide_by_std=False).tolist() == [-1.0, 0.0, 0.0, 1.0]


@settings(max_examples=100)
@given(values=rewards_of_a_group)
def test_leave_one_out_is_the_mean_of_the_others(values):
    expected = [reward - sum(values[:i] + values[i + 1 :]) / (len(values) - 1) for i, reward in enumerate(values)]
    actual = leave_one_out(torch.tensor(values, dtype=torch.float64))
    assert actual.tolist() == pytest.approx(expected, abs=1e-14)


@every
@settings(max_examples=50)
@given(values=rewards_of_a_group, shift=st.floats(-8, 8))
def test_mean_is_zero_and_a_shift_changes_nothing(advantage, values, shift):
    rewards = torch.tensor(values, dtype=torch.float64)
    actual = advantage(rewards)
    assert actual.mean().item() == pytest.approx(0.0, abs=1e-13)
    if rewards.unique().numel() > 1:
        torch.testing.assert_close(advantage(rewards + shift), actual, rtol=1e-11, atol=1e-12)


@settings(max_examples=50)
@given(values=rewards_of_a_group, scale=st.floats(1e-6, 1e6) | st.sampled_from([1e-300, 1e-170, 1e170, 1e300]))
def test_division_by_the_standard_deviation_does_not_see_the_scale(values, scale):
    """The denominator has no added constant, and the squares of 1e-170 and 1e170 are outside of float64's range."""
    rewards = torch.tensor(values, dtype=torch.float64)
    actual = group_relative(rewards * scale)
    torch.testing.assert_close(actual, group_relative(rewards), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(whiten(rewards * scale), whiten(rewards), rtol=1e-11, atol=1e-12)
    if rewards.unique().numel() > 1:
        assert actual.std().item() == pytest.approx(1.0, rel=1e-12)


@every
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3, -2.7])
@pytest.mark.parametrize("group_size", [2, 3, 7, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tie_is_exactly_zero(advantage, value, group_size, dtype):
    """0.1 + 0.1 + 0.1 is not 0.3 in floating point: the division could turn this error into advantages of about 1."""
    assert advantage(torch.full((group_size,), value, dtype=dtype)).tolist() == [0.0] * group_size


# --- advantages of other papers


def responses(*parts, lengths=None):
    lengths = lengths or [1] * len(parts)
    return [
        SimpleNamespace(reward_parts=part, num_response_tokens=length)
        for part, length in zip(parts, lengths, strict=True)
    ]


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("scale", [1.0, -1e-9, 1e300])
def test_rounding_errors_are_no_difference(scale):
    for values in ([0.1 + 0.7 + 0.2, 0.7 + 0.2 + 0.1, 1.0], [0.1 + 0.2, 0.3]):
        rewards = scale * double(*values)
        found = [function(rewards) for function in (*ALL, whiten, *([max_rl] if scale > 0 else []))]
        found.append(gdpo(rewards, responses(*[{"a": reward} for reward in rewards.tolist()])))
        assert [advantages.tolist() for advantages in found] == [[0.0] * len(values)] * len(found)


def test_differences_above_rounding_errors_count():
    assert group_relative(double(0.3, 0.3 + 1e-11)).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_max_rl_divides_by_the_mean():
    assert max_rl(double(1, 0, 0, 0)).tolist() == [3.0, -1.0, -1.0, -1.0]
    assert max_rl(double(0, 0)).tolist() == max_rl(double(1, 1)).tolist() == [0.0, 0.0]
    assert max_rl(double(5e-324, 0)).isfinite().all()
    with pytest.raises(ValueError, match=r"rewards must not be negative: \[1.0, -1.0\]"):
        max_rl(double(1, -1))


def test_opo_has_a_baseline_that_is_weighted_by_length():
    rewards, lengths = double(1, 0, 0), [2, 6, 8]
    found = opo(rewards, responses({}, {}, {}, lengths=lengths))
    assert found.tolist() == pytest.approx([1 - 2 / 16, -2 / 16, -2 / 16])
    assert (found * torch.tensor(lengths)).sum().item() == pytest.approx(0.0, abs=1e-15)
    assert opo(double(1, 1), responses({}, {}, lengths=[0, 0])).tolist() == [0.0, 0.0]


def test_gdpo_normalizes_each_part_within_the_group():
    parts = [{"answer": 1.0, "format": 0.01}, {"answer": 0.0, "format": 0.01}, {"answer": 0.0}]
    rewards = double(1.01, 0.01, 0)
    found = gdpo(rewards, responses(*parts))
    expected = group_relative(double(1, 0, 0)) + group_relative(double(0.01, 0.01, 0))
    torch.testing.assert_close(found, expected)
    assert gdpo.batch_step is whiten


def test_gdpo_has_no_advantage_where_parts_cancel_out():
    groups = [[0.1, 0.9, 0.4, 0.8], [0.9, 0.2, 0.4, 0.1]]
    found = [gdpo(torch.ones(4), responses(*[{"a": x, "b": 1 - x} for x in group])) for group in groups]
    assert whiten(torch.cat(found)).tolist() == [0.0] * 8


def test_reinforce_plus_plus_is_whitened_over_the_cycle():
    for function, expected in ((reinforce_plus_plus, [1.0, 3.0]), (reinforce_plus_plus_baseline, [-1.0, 1.0])):
        assert function(double(1, 3)).tolist() == expected and function.batch_step is whiten
    assert whiten(double(1, 2, 3)).tolist() == [-1.0, 0.0, 1.0]
    assert whiten(double(0.1, 0.1, 0.1)).tolist() == [0.0] * 3 and whiten(double(7)).tolist() == [0.0]
    assert whiten(double()).tolist() == []
