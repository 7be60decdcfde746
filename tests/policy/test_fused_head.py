"""The fused head: gradients in every mode, the gradient in Megatron's buffer, and whole updates."""

import pytest
import torch
from vocab_parallel import (
    BUDGETS,
    GRADIENTS,
    HIDDEN,
    TEMPERATURE,
    VOCAB_SIZE,
    expected,
    inputs,
    naive,
    run_fused,
    scalar,
)

from megatron_sspo.objective.divergence import generalized_jsd, with_rest
from megatron_sspo.policy.head import fused as fused_head
from megatron_sspo.policy.head.fused import fused_log_probs_and_entropy

every_mode = pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)


@pytest.fixture(params=[16, 48, 4096], ids=lambda width: f"blocks of {width}")
def blocks(request, monkeypatch):
    """Sets the width of blocks, so that the vocabulary needs several blocks or one."""
    monkeypatch.setitem(fused_head.BLOCK, "cpu", 1)
    monkeypatch.setattr(fused_head, "MIN_COLUMNS", request.param)


def head(hidden, weight, labels, budget=0):
    return fused_log_probs_and_entropy(
        hidden, weight, labels, temperature=TEMPERATURE, vocab_size=VOCAB_SIZE, memory_budget_bytes=budget
    )


@every_mode
@pytest.mark.parametrize("which", GRADIENTS)
@pytest.mark.parametrize("rows", [37, 1, 0])
def test_values_and_gradients_in_float64(blocks, rows, which, budget):
    found, wanted = run_fused(rows, 98, which, budget, 0, None), expected(rows, which)
    assert not found["weight.grad"][VOCAB_SIZE:].any()
    found["weight.grad"] = found["weight.grad"][:VOCAB_SIZE]
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-11)


def test_a_token_that_the_vocabulary_lacks_is_as_good_as_impossible():
    given = inputs(3, torch.float64)
    tokens = torch.tensor([[VOCAB_SIZE, 5]] * 3)
    options = {"temperature": TEMPERATURE, "vocab_size": VOCAB_SIZE, "top_tokens": tokens}
    hidden = given["hidden"].requires_grad_()
    *_, top = fused_log_probs_and_entropy(hidden, given["weight"], given["labels"], **options)
    assert top[:, 0].tolist() == [-100.0] * 3
    generalized_jsd(with_rest(torch.tensor([[-30.0, -0.7]] * 3)), top, 0.5).sum().backward()
    assert torch.isfinite(hidden.grad).all() and hidden.grad.any()


def test_kept_logits_serve_one_backward_pass():
    given = inputs(3, torch.float64)
    log_probs, _ = head(given["hidden"].requires_grad_(), given["weight"], given["labels"], budget=1 << 30)
    log_probs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="cannot be run again"):
        log_probs.sum().backward()


@every_mode
def test_bfloat16_operands(blocks, budget):
    given = inputs(37, torch.bfloat16)
    results = []
    for function, dtype in ((head, torch.bfloat16), (None, torch.float64)):
        hidden = given["hidden"].detach().to(dtype).requires_grad_()
        weight = given["weight"][:98].detach().to(dtype).requires_grad_()
        if function:
            log_probs, entropy = function(hidden, weight, given["labels"], budget=budget)
            assert log_probs.dtype == entropy.dtype == torch.float32
        else:
            log_probs, entropy = naive((hidden @ weight.t())[:, :VOCAB_SIZE], given["labels"], TEMPERATURE)
        scalar("both", log_probs, entropy, given["g"]).backward()
        results.append((log_probs.detach(), entropy.detach(), hidden.grad, weight.grad))
    for found, wanted in zip(*results, strict=True):
        difference = (found.double() - wanted.double()).norm() / wanted.double().norm()
        assert difference < 0.01, difference  # logits of up to 15, rounded to 8 bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_the_weight_is_added_to_main_grad(blocks, dtype):
    given = inputs(37, dtype)
    gradients = []
    for with_main_grad in (False, True):
        hidden = given["hidden"].clone().requires_grad_()
        weight = torch.nn.Parameter(given["weight"][:98].clone())
        if with_main_grad:
            weight.main_grad = torch.ones(98, HIDDEN)
            weight.grad_added_to_main_grad = False
        scalar("both", *head(hidden, weight, given["labels"]), given["g"]).backward()
        gradients.append(weight.main_grad - 1 if with_main_grad else weight.grad)
    assert weight.grad is None
    assert weight.grad_added_to_main_grad
    torch.testing.assert_close(gradients[0].float(), gradients[1], rtol=0, atol=1e-6 * float(gradients[1].abs().max()))
