"""Penalties: the estimators against an exact divergence, and the sum over sequences."""

import pytest
import torch

from megatron_sspo.objective import Penalties, Segments, kl

ESTIMATORS = ["k2", "k3"]


def policies():
    """Returns log-probs of two distributions over eight tokens; the first one requires a gradient."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, generator=generator, dtype=torch.float64).requires_grad_()
    reference = (logits.detach() + 0.5 * torch.randn(8, generator=generator, dtype=torch.float64)).log_softmax(0)
    return logits, logits.log_softmax(0), reference


def test_k3_is_unbiased():
    _, log_probs, reference = policies()
    exact = (log_probs.exp() * (log_probs - reference)).sum()
    assert (log_probs.exp() * kl(log_probs, reference, "k3")).sum().item() == pytest.approx(exact.item())


def test_k2_is_half_the_square():
    assert kl(torch.tensor([0.0, 1.0]), torch.tensor([3.0, -1.0]), "k2").tolist() == [4.5, 2.0]


def test_mean_gradient_of_each_estimator_is_what_its_docstring_says():
    logits, log_probs, reference = policies()
    forward = (log_probs.exp() * (log_probs - reference)).sum()
    backward = (reference.exp() * (reference - log_probs)).sum()
    expected = {
        "k2": torch.autograd.grad(forward, logits, retain_graph=True)[0],
        "k3": torch.autograd.grad(backward, logits, retain_graph=True)[0],
    }
    for estimator in ESTIMATORS:
        # The mean over sampled tokens of the gradient: the probability is not differentiated.
        mean = (log_probs.exp().detach() * kl(log_probs, reference, estimator)).sum()
        (gradient,) = torch.autograd.grad(mean, logits, retain_graph=True)
        torch.testing.assert_close(gradient, expected[estimator], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_sum_over_sequences_of_token_means(estimator):
    lengths = [3, 0, 1, 5]
    generator = torch.Generator().manual_seed(1)
    log_probs, reference, entropy = -torch.rand(3, 9, generator=generator, dtype=torch.float64)
    penalty = Penalties(kl_coef=0.3, kl_estimator=estimator, entropy_coef=0.7)
    expected = 0.0
    for new, ref, h in zip(log_probs.split(lengths), reference.split(lengths), entropy.split(lengths), strict=True):
        if len(new):
            expected += (0.3 * kl(new, ref, estimator) - 0.7 * h).mean().item()
    actual = penalty(log_probs, entropy, reference, Segments.from_lengths(lengths))
    assert actual.shape == ()
    assert actual.item() == pytest.approx(expected, rel=1e-12)


def test_terms_without_a_coefficient_need_no_input():
    segments, log_probs = Segments.from_lengths([2]), torch.zeros(2)
    assert Penalties()(log_probs, None, None, segments).item() == 0.0
    assert Penalties(kl_coef=1.0)(log_probs, None, torch.zeros(2), segments).item() == 0.0
    assert Penalties(entropy_coef=1.0)(log_probs, torch.ones(2), None, segments).item() == -1.0
    with pytest.raises(ValueError, match="no reference_log_probs"):
        Penalties(kl_coef=1.0)(log_probs, torch.ones(2), None, segments)
    with pytest.raises(ValueError, match="no entropy"):
        Penalties(entropy_coef=1.0)(log_probs, None, torch.ones(2), segments)
