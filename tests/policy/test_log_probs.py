"""Log-probs and entropy of given logits compared with log_softmax, in values and gradients."""

import pytest
import torch

from megatron_sspo.policy.head import log_probs as module
from megatron_sspo.policy.head.fused import fused_log_probs_and_entropy

TEMPERATURE = 0.7


def log_probs_and_entropy(logits, labels, **options):
    """Gives the head these logits to the bit: hidden states are rows of the identity, and the weight is the logits."""
    return fused_log_probs_and_entropy(torch.eye(len(logits), dtype=logits.dtype), logits.t(), labels, **options)


def naive(logits, labels, *, temperature, vocab_size):
    distribution = torch.log_softmax(logits[:, :vocab_size].double() / temperature, dim=1)
    return distribution.gather(1, labels[:, None])[:, 0], -(distribution.exp() * distribution).sum(dim=1)


def gradient(function, logits, labels, upstream, **options):
    """Returns (log-probs, entropy, gradient at the logits) for the upstream gradients [2, R]."""
    leaf = logits.clone().requires_grad_()
    values = function(leaf, labels, **options)
    return *values, torch.autograd.grad(values, leaf, list(upstream.to(values[0].dtype)))[0]


def example(rows=37, width=97, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(rows, width, generator=generator)).to(dtype)
    labels = torch.randint(0, min(width, 97), (rows,), generator=generator)
    return logits, labels, torch.randn(2, rows, generator=generator, dtype=torch.float64)


def test_float32_is_as_good_as_float32_can_be():
    logits, labels, upstream = example()
    options = {"temperature": TEMPERATURE, "vocab_size": 97}
    found = gradient(log_probs_and_entropy, logits, labels, upstream, **options)
    expected = gradient(naive, logits.double(), labels, upstream, **options)
    assert [x.dtype for x in found] == [torch.float32] * 3
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("fill", [1e4, -1e4, float("inf"), float("nan")])
def test_padding_columns_are_ignored(fill):
    logits, labels, upstream = example(width=104)
    options = {"temperature": TEMPERATURE, "vocab_size": 97}
    expected = gradient(log_probs_and_entropy, logits[:, :97], labels, upstream, **options)
    logits[:, 97:] = fill
    *values, found = gradient(log_probs_and_entropy, logits, labels, upstream, **options)
    assert torch.equal(values[0], expected[0]) and torch.equal(values[1], expected[1])
    assert torch.equal(found[:, :97], expected[2])
    assert not found[:, 97:].any()


@pytest.mark.parametrize("shift", [-120.0, -8.0, 0.0, 8.0, 120.0])
@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE])
def test_float32_logits_of_a_large_vocabulary(shift, temperature):
    # multiples of 2^-10, which a shift by 120 does not round
    logits = ((torch.randn(24, 50_001, generator=torch.Generator().manual_seed(0)) * 3 * 1024).round() / 1024) + shift
    labels, options = torch.arange(24) * 2000, {"temperature": temperature, "vocab_size": 50_001}
    found, expected = log_probs_and_entropy(logits, labels, **options), naive(logits, labels, **options)
    torch.testing.assert_close(torch.stack(found).double(), torch.stack(expected), rtol=0, atol=5e-6)


def test_far_apart_logits_are_finite():
    logits = torch.tensor([[500.0, 0.0, -500.0], [-500.0, 0.0, 500.0]])
    labels = torch.tensor([2, 2])
    *values, found = gradient(log_probs_and_entropy, logits, labels, torch.ones(2, 2), temperature=0.5, vocab_size=3)
    assert torch.equal(values[0], torch.tensor([-2000.0, 0.0]))
    assert torch.equal(values[1], torch.zeros(2))
    assert found.isfinite().all()


@pytest.mark.parametrize("tile", [64, 700])
def test_the_size_of_a_tile_changes_rounding_alone(monkeypatch, tile):
    logits, labels, upstream = example(rows=100)
    options = {"temperature": TEMPERATURE, "vocab_size": 97}
    expected = gradient(log_probs_and_entropy, logits, labels, upstream, **options)
    monkeypatch.setitem(module.TILE, "cpu", tile)
    found = gradient(log_probs_and_entropy, logits, labels, upstream, **options)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-6)


def test_bf16_logits_are_summed_in_float32():
    logits, labels, upstream = example(rows=64, width=20_000, dtype=torch.bfloat16)
    options = {"temperature": TEMPERATURE, "vocab_size": 20_000}
    found = gradient(log_probs_and_entropy, logits, labels, upstream, **options)
    expected = gradient(naive, logits, labels, upstream, **options)
    assert found[0].dtype == found[1].dtype == torch.float32
    # bf16 sums of 20,000 terms would be wrong in the second digit
    torch.testing.assert_close(found[0].double(), expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=0, atol=1e-5)
    assert found[2].dtype == torch.bfloat16
    torch.testing.assert_close(found[2], expected[2], rtol=0.01, atol=1e-6)
