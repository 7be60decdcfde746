"""Inputs that the loss hook gives to an objective by name, and advantages of sequences or of tokens."""

from dataclasses import replace

import layouts
import pytest
import torch
from megatron.core.transformer.moe import moe_utils
from tiny_policy import make_run, read_batch

from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.errors import UserError
from megatron_sspo.objective import Correction, Penalties, Sums, erc, sspo
from megatron_sspo.policy.forward_step import policy_loss
from megatron_sspo.policy.metrics import merge_reports, update_metrics
from megatron_sspo.policy.plugin import pack_rollouts, policy_step
from megatron_sspo.policy.policy import Policy
from tests.responses import response

ROLLOUT = response((3, 4), rollout_log_probs=(-1.0, -2.0), advantage=2.0)


class Asking:
    """An objective that keeps what it is given."""

    def __init__(self, *needs):
        self.needs = needs

    def __call__(self, log_probs, old_log_probs, advantages, segments, **inputs):
        self.given = (old_log_probs, advantages, segments, inputs)
        return Sums(loss=log_probs.sum(), sequences={"lengths": segments.lengths})


NO_CORRECTION = Correction()


def evaluate(objective, *rollouts, correction=NO_CORRECTION):
    microbatch = make_microbatch([((1,), rollout) for rollout in rollouts])
    log_probs = torch.full((microbatch.segments.num_tokens,), -0.5, requires_grad=True)
    entropy = torch.full_like(log_probs, 0.7).requires_grad_()
    loss = policy_loss(objective, Penalties(), correction, scale=1.0)
    return loss(microbatch, log_probs, entropy), entropy


def test_an_objective_is_given_what_it_names_and_nothing_else():
    objective = Asking()
    evaluate(objective, ROLLOUT)
    assert objective.given[3] == {}
    objective = Asking("rollout_log_probs", "reference_log_probs", "entropy", "old_entropy")
    rollout = replace(ROLLOUT, old_log_probs=(-1, -1), reference_log_probs=(-3, -4), old_entropy=(0.1, 0.2))
    _, entropy = evaluate(objective, rollout)
    given = objective.given[3]
    assert given["entropy"] is entropy, "with its gradient"
    assert given["rollout_log_probs"].tolist() == [-1, -2] and given["reference_log_probs"].tolist() == [-3, -4]
    assert given["old_entropy"].tolist() == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(
    ("level", "tokens", "sequences"), [("token", 0.75, 0.5), ("sequence", 1.0, 1.0), ("product", 1.0, 1.0)]
)
def test_the_share_that_a_correction_masks_is_a_metric(level, tokens, sequences):
    agreeing = replace(ROLLOUT, old_log_probs=(-1, 2))  # π_old / π_rollout: 1 and e^4
    other = replace(ROLLOUT, old_log_probs=(-3, -4))  # e^-2 twice
    (_, _, report), _ = evaluate(Asking(), agreeing, other, correction=Correction(mode="masked", level=level))
    row = update_metrics(merge_reports([report], order=range(2), divisor=2))
    assert (row["engine/masked_tokens"], row["engine/masked_sequences"]) == (tokens, sequences)
    (_, _, report), _ = evaluate(Asking(), agreeing, other)
    assert "engine/masked_tokens" not in update_metrics(merge_reports([report], order=range(2), divisor=2))


def test_an_objective_without_a_gradient_for_a_real_batch():
    def objective(*given):
        return replace(sspo()(*given), loss=torch.zeros(()))

    with pytest.raises(UserError, match=r"without a gradient .*: use every log-prob, if only times"):
        evaluate(objective, ROLLOUT)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="the objective needs reference_log_probs, and the batch has none"):
        evaluate(Asking("reference_log_probs"), ROLLOUT)
    with pytest.raises(ValueError, match="the objective needs old_entropy, and the batch has none"):
        evaluate(Asking("old_entropy"), replace(ROLLOUT, old_log_probs=(-1, -1)))
    with pytest.raises(ValueError, match="Asking needs 'logits', and there are rollout_log_probs, "):
        evaluate(Asking("logits"), ROLLOUT)


def test_advantages_of_tokens_in_as_many_sequences_are_not_taken_for_those_of_sequences():
    empty = replace(ROLLOUT, tokens=(), rollout_log_probs=(), token_advantages=())
    objective = Asking()
    (_, _, report), _ = evaluate(objective, empty, replace(ROLLOUT, token_advantages=(1.0, -1.0)))
    _, advantages, segments, _ = objective.given
    assert advantages.tolist() == report["tokens"]["advantage"].tolist() == [1.0, -1.0]
    assert segments.are_per_token("advantages", advantages)
    assert report["sequences"]["lengths"].tolist() == [0, 2]


@pytest.mark.parametrize("recompute", [{}, layouts.RECOMPUTE])
def test_a_microbatch_without_sequences_adds_nothing(device, folders, batches, monkeypatch, recompute):
    """The objective is a mean over sequences, and the routers' losses are means over microbatches."""

    def gradient(empty, **megatron):
        run = make_run(tokens=4096, megatron={**recompute, **megatron})
        policy = Policy(run, folders["moe"], device)
        plan = policy._schedule._plan
        monkeypatch.setattr(policy._schedule, "_plan", lambda batch: [[*plan(batch)[0], *[[]] * empty]])
        policy.gradient(read_batch(batches["moe"]), sspo())
        grads = [(p.main_grad, name) for chunk in policy.chunks for name, p in chunk.named_parameters()]
        return {name: grad.clone() for grad, name in grads}

    alone = gradient(0, moe_router_load_balancing_type="none")
    whole, with_empty = gradient(0, **layouts.AUXILIARY), gradient(1, **layouts.AUXILIARY)
    assert max((whole[name] - alone[name]).abs().max() for name in alone) > 1e-2, "the routers' losses must count"
    for name, found in with_empty.items():
        torch.testing.assert_close(found, (alone[name] + whole[name]) / 2, rtol=1e-4, atol=1e-5)


def test_the_fused_loss_of_routers_gets_a_whole_number_of_tokens(device, folders, batches, monkeypatch):
    """Transformer Engine refuses a float. Its kernels are replaced by Megatron's own operators."""

    def fused_loss(*, total_num_tokens, coeff, **others):
        assert isinstance(total_num_tokens, int) or total_num_tokens.dtype == torch.int64
        return switch(total_num_tokens=total_num_tokens, moe_aux_loss_coeff=coeff, **others)

    def gradient(fused):
        policy = Policy(make_run(megatron=layouts.AUXILIARY), folders["moe"], device)
        policy.transformer.moe_router_fusion = fused
        policy.gradient(read_batch(batches["moe"]), sspo())
        return torch.cat([p.main_grad.flatten() for chunk in policy.chunks for p in chunk.parameters()])

    expected, switch = gradient(fused=False), moe_utils.switch_load_balancing_loss_func
    monkeypatch.setattr(moe_utils, "HAVE_TE", True)
    kernels = {
        "fused_topk_with_score_function": moe_utils.topk_routing_with_score_function,
        "fused_compute_score_for_moe_aux_loss": moe_utils.compute_routing_scores_for_aux_loss,
        "fused_moe_aux_loss": fused_loss,
    }
    for name, kernel in kernels.items():
        monkeypatch.setattr(moe_utils, name, kernel, raising=False)
    torch.testing.assert_close(gradient(fused=True), expected)


def test_in_another_loop(device):
    given = {"prompt": [1], "response": [3, 4], "advantage": [1.0, 3.0], "old": [-1, -1], "old_entropy": [0.1, 0.2]}
    microbatch = pack_rollouts([given])
    assert microbatch.token_advantages.tolist() == [1.0, 3.0] and microbatch.advantages.tolist() == [2.0]
    assert microbatch.old_entropy.tolist() == pytest.approx([0.1, 0.2])
    options = {"num_sequences": 1, "num_microbatches": 1, "vocab_size": 8}
    with pytest.raises(ValueError, match="give policy_step num_tokens"):
        policy_step(erc(), **options)
    hooks = (policy_step(erc(), num_tokens=2, **options), policy_step(sspo(), **options))
    log_probs = torch.tensor([-1.0, -1.0], requires_grad=True)
    of_tokens, of_sequences = (hook.loss(microbatch, log_probs, torch.tensor([0.1, 0.2]))[0] for hook in hooks)
    assert of_tokens.item() == of_sequences.item() == -2.0
