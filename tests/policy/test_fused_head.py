"""The fused head: gradients in every mode, the gradient in Megatron's buffer, and whole updates."""

import pytest
import torch
from tiny_policy import make_run, read_batch
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

from megatron_sspo.objective import Penalties, sspo
from megatron_sspo.policy import forward_step
from megatron_sspo.policy.forward_step import ForwardStep
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
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("which", GRADIENTS)
def test_gradcheck(blocks, which):
    given = inputs(3, torch.float64)
    leaves = given["hidden"][:, :4].contiguous().requires_grad_(), given["weight"][:98, :4].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda hidden, weight: scalar(which, *head(hidden, weight, given["labels"]), given["g"]), leaves
    )


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


class FromLogits(ForwardStep):
    """A forward step that uses the model's own output layer."""

    def __call__(self, microbatches, model):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forward_step, "forward_without_head", lambda model, chunk, **inputs: model(**inputs))
            return super().__call__(microbatches, model)

    def loss_from_hidden(self, microbatch, chunk, hidden):
        logits = hidden[0][microbatch.response_rows]
        labels = microbatch.response_tokens
        return self.loss(microbatch, *naive(logits[:, : self.vocab_size], labels, self.temperature))


@pytest.mark.slow
@every_mode
@pytest.mark.parametrize("penalty", [0.0, 0.01], ids=["", "entropy bonus"])
@pytest.mark.parametrize("kind", ["tied", "moe"])
def test_an_update_is_the_same_as_with_the_output_layer(device, folders, batches, monkeypatch, kind, penalty, budget):
    from megatron_sspo.policy.head import head as head_module
    from megatron_sspo.policy.policy import Policy
    from megatron_sspo.policy.schedule import Schedule

    batch, records, weights = read_batch(batches[kind]), [], []
    real = fused_head.fused_log_probs_and_entropy
    monkeypatch.setattr(
        head_module, "fused_log_probs_and_entropy", lambda *a, **k: real(*a, **k, memory_budget_bytes=budget)
    )
    for step in (ForwardStep, FromLogits):
        monkeypatch.setattr(Schedule, "step", step)
        policy = Policy(make_run(penalties=Penalties(entropy_coef=penalty)), folders[kind], device)
        records.append(policy.update(policy.old_log_probs(batch), sspo()))
        weights.append({name: tensor.clone() for name, tensor in policy.weights()})
    fused, plain = records
    assert fused.grad_norm == pytest.approx(plain.grad_norm, rel=1e-6)
    assert fused.loss == pytest.approx(plain.loss, rel=1e-6, abs=1e-7)
    for name, tensor in weights[1].items():
        torch.testing.assert_close(weights[0][name], tensor, rtol=0, atol=1e-5)
