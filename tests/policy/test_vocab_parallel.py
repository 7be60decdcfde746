"""Log-probs and entropy from logits: the formula in float64, hard cases, and two ranks with half of the columns."""

from pathlib import Path

import pytest
import torch
import vocab_parallel
from launcher import launch
from vocab_parallel import BUDGETS, GRADIENTS, SHAPES, VOCAB_SIZE, expected, naive, run_logits

from megatron_sspo.policy.head import log_probs as module
from megatron_sspo.policy.head.log_probs import log_probs_and_entropy


def values(logits, labels, *, temperature=1.0, vocab_size=None):
    vocab_size = vocab_size or logits.size(1)
    return log_probs_and_entropy(logits, labels, temperature=temperature, vocab_size=vocab_size)


def close(found, wanted, tolerance):
    assert found.shape == wanted.shape
    difference = float((found.detach().double() - wanted.detach().double()).abs().max()) if wanted.numel() else 0.0
    assert difference <= tolerance, difference


@pytest.fixture(params=[64, 1024, 1 << 19])
def tile(request, monkeypatch):
    """Sets small tiles, of which a matrix needs many in both directions, or the usual ones."""
    monkeypatch.setitem(module.TILE, "cpu", request.param)


@pytest.mark.parametrize("which", GRADIENTS)
@pytest.mark.parametrize("rows", [37, 1, 0])
def test_values_and_gradients_in_float64(tile, rows, which):
    found, wanted = run_logits(rows, 98, which, 0, None), expected(rows, which)
    assert not found["logits.grad"][:, VOCAB_SIZE:].any()
    found["logits.grad"] = found["logits.grad"][:, :VOCAB_SIZE]
    for name, tensor in found.items():
        close(tensor, wanted[name], 1e-12)


@pytest.mark.parametrize("shift", [-120.0, -8.0, 0.0, 8.0, 120.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_float32_logits_of_a_large_vocabulary(shift, temperature):
    # multiples of 2^-10, which a shift by 120 does not round
    logits = ((torch.randn(24, 50_001, generator=torch.Generator().manual_seed(0)) * 3 * 1024).round() / 1024) + shift
    labels = torch.arange(24) * 2000
    wanted = naive(logits.double(), labels, temperature)
    for found, exact in zip(values(logits, labels, temperature=temperature), wanted, strict=True):
        close(found, exact, 5e-6)


def test_padding_columns_beside_negative_logits():
    # if columns beyond V were read as 0, they would have all the probability
    logits = torch.full((3, 130), -100.0)
    logits[:, 97:] = 0
    log_probs, entropy = values(logits, torch.tensor([0, 50, 96]), vocab_size=97)
    close(log_probs, torch.full((3,), 97.0).log().neg(), 1e-6)
    close(entropy, torch.full((3,), 97.0).log(), 1e-6)


def test_gradient_overwrites_the_logits():
    logits = torch.randn(4, 20, requires_grad=True)
    copy = logits.clone()
    log_probs, _ = values(copy, torch.arange(4))
    (gradient,) = torch.autograd.grad(log_probs.sum(), copy)
    assert gradient.data_ptr() == copy.data_ptr()


def test_zero_entropy_gradient_equals_none():
    found = []
    for coefficient in (None, 0.0):
        logits = torch.randn(8, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        log_probs, entropy = values(logits, torch.arange(8))
        loss = log_probs.sum() if coefficient is None else log_probs.sum() + coefficient * entropy.sum()
        found.append(torch.autograd.grad(loss, logits)[0])
    close(*found, 1e-14)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    results = tmp_path_factory.mktemp("two_ranks")
    launch(Path(vocab_parallel.__file__), 2, results)
    return [torch.load(results / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["logits", *BUDGETS])
@pytest.mark.parametrize("which", GRADIENTS)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_two_ranks(two_ranks, rows, width, which, implementation):
    first, second = (ranks[rows, which, implementation] for ranks in two_ranks)
    wanted = expected(rows, which)
    for name, tensor in first.items():
        if name == "logits.grad":
            found = torch.cat([tensor, second[name]], dim=1)
            assert not found[:, VOCAB_SIZE:].any()
            found = found[:, :VOCAB_SIZE]
        elif name == "weight.grad":
            found = torch.cat([tensor, second[name]])
            assert not found[VOCAB_SIZE:].any()
            found = found[:VOCAB_SIZE]
        elif name == "hidden.grad":
            found = tensor + second[name]  # each rank has a share of the gradient
        else:
            assert torch.equal(tensor, second[name])
            found = tensor
        close(found, wanted[name], 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["logits", *BUDGETS])
@pytest.mark.parametrize("which", GRADIENTS)
def test_gradcheck_on_two_ranks(two_ranks, which, implementation):
    assert two_ranks[0]["gradcheck", which, implementation] < 1e-7
