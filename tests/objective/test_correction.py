"""Engine correction: the weights, and that they scale only gradients."""

import pytest
import torch

from megatron_sspo.objective import Correction, Segments, gmpo, grpo, gspo, sapo, sspo

OBJECTIVES = {"grpo": grpo(), "gspo": gspo(0.2, 0.2), "gmpo": gmpo(), "sapo": sapo(), "sspo": sspo()}
LENGTHS = [4, 0, 1, 7]
SEGMENTS = Segments.from_lengths(LENGTHS)
MODES = [
    Correction("truncated", "token"),
    Correction("masked", "token"),
    Correction("truncated", "sequence", cap=1.05),
    Correction("masked", "sequence", cap=1.2, floor=0.8),
]
every_mode = pytest.mark.parametrize("correction", MODES, ids=str)


def batch(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    rollout = -torch.rand(12, generator=generator, dtype=torch.float64)
    old = rollout + 0.6 * torch.randn(12, generator=generator, dtype=torch.float64)
    log_probs = old + 0.1 * torch.randn(12, generator=generator, dtype=torch.float64)
    return log_probs.to(dtype).requires_grad_(), old.to(dtype), rollout.to(dtype)


def test_token_level_truncates_or_masks():
    ratios = torch.tensor([0.1, 0.49, 0.51, 1.0, 1.9, 2.1, 50.0], dtype=torch.float64)
    for mode, expected in (
        ("truncated", [0.1, 0.49, 0.51, 1.0, 1.9, 2.0, 2.0]),
        ("masked", [0.0, 0.0, 0.51, 1.0, 1.9, 0.0, 0.0]),
    ):
        weights = Correction(mode).weights(ratios.log(), torch.zeros_like(ratios), Segments.from_lengths([7]))
        assert weights.tolist() == pytest.approx(expected)


def test_sequence_level_is_the_geometric_mean():
    _, old, rollout = batch()
    weights = Correction("truncated", "sequence", cap=100.0).weights(old, rollout, SEGMENTS)
    for part, ratios in zip(weights.split(LENGTHS), (old - rollout).exp().split(LENGTHS), strict=True):
        if len(part):
            assert part.tolist() == pytest.approx([ratios.prod().item() ** (1 / len(part))] * len(part))


def test_the_ratio_is_of_the_trainer_over_the_engine_at_the_old_weights():
    """The ratio is π_old / π_rollout and does not depend on π_θ."""
    log_probs, old, rollout = batch()
    correction = Correction("truncated", cap=100.0)
    torch.testing.assert_close(correction.weights(old, rollout, SEGMENTS), (old - rollout).exp())
    first = torch.autograd.grad(correction.apply(log_probs, old, rollout, SEGMENTS).sum(), log_probs)[0]
    moved = (log_probs.detach() + 1).requires_grad_()
    second = torch.autograd.grad(correction.apply(moved, old, rollout, SEGMENTS).sum(), moved)[0]
    torch.testing.assert_close(first, second)


@every_mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_stay_and_gradients_scale(correction, dtype):
    log_probs, old, rollout = batch(dtype)
    corrected = correction.apply(log_probs, old, rollout, SEGMENTS)
    assert corrected.detach().equal(log_probs.detach())
    (gradient,) = torch.autograd.grad(corrected.sum(), log_probs)
    weights = correction.weights(old, rollout, SEGMENTS)
    assert not weights.requires_grad
    assert gradient.equal(weights)
    assert weights.unique().numel() > 1, "the batch must exercise the correction"


@every_mode
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_each_token_of_each_objective_contributes_in_proportion(objective, correction):
    log_probs, old, rollout = batch()
    advantages = torch.tensor([1.0, 0.5, -0.7, -1.2], dtype=torch.float64)
    plain = objective(log_probs, old, advantages, SEGMENTS)
    corrected = objective(correction.apply(log_probs, old, rollout, SEGMENTS), old, advantages, SEGMENTS)
    assert corrected.loss.item() == plain.loss.item()
    expected = correction.weights(old, rollout, SEGMENTS) * torch.autograd.grad(plain.loss, log_probs)[0]
    torch.testing.assert_close(torch.autograd.grad(corrected.loss, log_probs)[0], expected, rtol=1e-12, atol=0)


@every_mode
def test_no_mismatch_changes_nothing(correction):
    log_probs, old, _ = batch()
    (gradient,) = torch.autograd.grad(correction.apply(log_probs, old, old, SEGMENTS).sum(), log_probs)
    assert gradient.tolist() == [1.0] * 12


def test_none_is_the_same_tensor():
    log_probs, old, rollout = batch()
    assert Correction().apply(log_probs, old, rollout, SEGMENTS) is log_probs
    assert Correction().weights(old, rollout, SEGMENTS).tolist() == [1.0] * 12


@every_mode
def test_an_extreme_mismatch_is_finite(correction):
    """A ratio of e^{±200} overflows fp32; the cap and the mask must still hold."""
    log_probs = torch.zeros(2, requires_grad=True)
    rollout = torch.tensor([-200.0, 200.0])
    corrected = correction.apply(log_probs, torch.zeros(2), rollout, Segments.from_lengths([1, 1]))
    (gradient,) = torch.autograd.grad(corrected.sum(), log_probs)
    assert gradient.tolist() == [pytest.approx(correction.cap) if correction.mode == "truncated" else 0.0, 0.0]
