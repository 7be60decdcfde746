"""Rows with shared prompts have the log-probs and the gradient of separate rows. Layouts: see `test_layouts.py`."""

import math

import layouts
import pytest
import torch
from tiny_policy import make_run, read_batch

from megatron_sspo.errors import UserError
from megatron_sspo.objective import Penalties, sspo
from megatron_sspo.policy.layers import attention
from megatron_sspo.policy.metrics import update_metrics
from megatron_sspo.policy.policy import Policy


def make_policy(folder, device, *, share, tokens=4096, **fields):
    return Policy(make_run(tokens=tokens, share_prompts=share, **fields), folder, device)


def gradient_of(policy, batch):
    record = policy.gradient(batch, sspo())
    return record, layouts.gather_gradients(policy)


def sharing_of(policy, batch):
    """Returns the numbers of sequences that share a prompt, over the batch's microbatches."""
    plan = policy._schedule._plan(batch)
    return sorted((len(part) for of_rank in plan for parts in of_rank for part in parts), reverse=True)


@pytest.mark.parametrize("max_padding", [math.inf, -1])  # pieces in two padded calls, and in a call for each
@pytest.mark.parametrize(("kind", "tokens"), [("moe", 4096), ("moe", 40), ("tied", 4096), ("gpt_oss", 4096)])
def test_the_gradient_is_that_of_separate_rows(kind, tokens, max_padding, folders, batches, device, monkeypatch):
    monkeypatch.setattr(attention, "_MULTIPLICATIONS_PER_CALL", max_padding)
    batch = read_batch(batches[kind])
    policies = [make_policy(folders[kind], device, share=share, tokens=tokens) for share in (True, False)]
    shared, separate = (sharing_of(policy, batch) for policy in policies)
    assert max(shared) > 1 and max(separate) == 1
    assert tokens == 4096 or len(shared) > 3  # a microbatch forces groups to be cut
    (record, found), (expected_record, expected) = (gradient_of(policy, batch) for policy in policies)
    assert record.loss == pytest.approx(expected_record.loss, abs=1e-6)
    for name, tensor in expected.items():
        assert float((found[name] - tensor).norm() / tensor.norm()) < 5e-6, name
    assert update_metrics(record) == pytest.approx(update_metrics(expected_record), rel=1e-5, abs=1e-5)


def test_the_reference_pass_is_that_of_separate_rows(folders, batches, device):
    batch = read_batch(batches["moe"])
    found = {}
    for share in (True, False):
        policy = make_policy(folders["moe"], device, share=share, penalties=Penalties(kl_coef=0.1))
        assert (max(sharing_of(policy, batch)) > 1) == share
        with torch.no_grad():
            for parameter in policy.chunks[0].parameters():
                parameter.mul_(1.1)  # π_ref has the weights from before
        ((reference_log_probs,), current) = policy.reference_log_probs([batch]), policy.old_log_probs(batch)
        found[share] = [r.reference_log_probs for group in reference_log_probs for r in group.rollouts]
        other = [r.old_log_probs for group in current for r in group.rollouts]
    for values, expected in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(torch.tensor(values), torch.tensor(expected), rtol=0, atol=1e-5)
    assert max(abs(a - b).max() for a, b in zip(found[False], other, strict=True) if len(a)) > 0.1


def test_responses_whose_prompt_took_other_routes_have_rows_of_their_own(folders, batches, device):
    batch = read_batch(batches["moe"].parent / "moe routed.npz")
    policy = make_policy(folders["moe"], device, share=True, routing_replay="R3")
    (shared,) = policy.scatter([batch])
    assert [[r.prompt_variant for r in group.rollouts] for group in shared] == [[0, 0, 0, 1], [0, 0, 0, 1]]
    assert sharing_of(policy, shared) == [3, 3, 1, 1]
    with pytest.raises(ValueError, match="sequences that share a prompt have different routes for it"):
        policy.gradient(batch, sspo())
    _, found = gradient_of(policy, shared)
    _, expected = gradient_of(make_policy(folders["moe"], device, share=False, routing_replay="R3"), batch)
    for name, tensor in expected.items():
        assert float((found[name] - tensor).norm() / tensor.norm()) < 5e-6, name


def test_on_a_cpu_prompts_are_shared_by_default_but_not_with_losses_of_the_routers(folders, batches, device):
    batch = read_batch(batches["moe"])
    assert max(sharing_of(make_policy(folders["moe"], device, share=None), batch)) == 4
    with_losses = make_policy(folders["moe"], device, share=None, megatron=layouts.AUXILIARY)
    assert max(sharing_of(with_losses, batch)) == 1


@pytest.mark.parametrize("losses", [{"moe_z_loss_coeff": 0.01}, layouts.AUXILIARY])
def test_sharing_together_with_losses_of_the_routers_is_refused(folders, device, losses):
    with pytest.raises(UserError, match="share_prompts is true, and the routers have losses of their own"):
        make_policy(folders["moe"], device, share=True, megatron=losses)


def test_rows_of_bfloat16_keep_the_prompts_gradient_in_float32(device):
    from megatron_sspo.policy.shared_prompts.keys import take

    rows = torch.zeros(1000, dtype=torch.int64)
    values = torch.zeros(2, 3, dtype=torch.bfloat16, requires_grad=True)
    take(values, rows).sum().backward()
    assert values.grad.tolist() == [[1000.0] * 3, [0.0] * 3]  # adding up in bfloat16 stops at 256
