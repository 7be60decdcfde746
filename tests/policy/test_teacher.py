"""On-policy distillation in one process: the teacher's log-probs by Transformers, and the gradient by its formula."""

from dataclasses import replace

import pytest
import tiny_policy
import torch
from naive import reference_gradients
from test_against_transformers import assert_same_gradients, gradients
from tiny_policy import log_probs, make_run, read_batch, reference

from megatron_sspo.memory.estimate import estimate, host_memory
from megatron_sspo.objective import grpo, sspo
from megatron_sspo.policy.metrics import update_metrics
from megatron_sspo.policy.policy import Policy
from megatron_sspo.run import Optimizer, Rollouts, Teacher
from megatron_sspo.types import Sampling, rollouts_of


def make_policy(folders, device, student, teacher, **fields):
    options = {"optimizer": Optimizer(lr=1e-3, clip_grad=1e9), "teacher": Teacher(path=str(folders[teacher]), **fields)}
    temperature = Rollouts(sampling=Sampling(temperature=tiny_policy.TEMPERATURE))
    return Policy(make_run(rollouts=temperature, **options), folders[student], device)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize(
    ("student", "teacher"), [("moe", "moe_shallow"), ("moe", "qwen2"), ("dense", "glm4"), ("moe", "qwen3_next")]
)
def test_log_probs_are_transformers(folders, device, batches, monkeypatch, student, teacher, temperature):
    monkeypatch.setattr(tiny_policy, "TEMPERATURE", temperature)
    policy, model = make_policy(folders, device, student, teacher), reference(folders[teacher])
    (taught,) = policy.teacher_log_probs([read_batch(batches[student])])
    for group in taught:
        for rollout in group.rollouts:
            with torch.no_grad():
                expected = log_probs(model, group.prompt, rollout)
            torch.testing.assert_close(torch.tensor(rollout.teacher_log_probs), expected, rtol=0, atol=1e-4)


def naive(student, teacher, batch, coef, reward_weight, *, on_policy):
    """−(1/N) Σ_i (1/|y_i|) Σ_t min(ρ Â_it, clip(ρ) Â_it), Â_it = w Â_i + c (log p_teacher − log π_old)."""
    losses = []
    for group in batch:
        for rollout in group.rollouts:
            if not len(rollout.tokens):
                losses.append(torch.zeros(()))
                continue
            now = log_probs(student, group.prompt, rollout)
            old = now.detach() if on_policy else torch.tensor(rollout.old_log_probs)
            advantage = reward_weight * rollout.advantage
            advantage = advantage + coef * (log_probs(teacher, group.prompt, rollout).detach() - old)
            ratio = (now - old).exp()
            terms = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            own = torch.tensor(rollout.response_mask())
            losses.append(-terms[own].sum() / rollout.num_response_tokens)
    return torch.stack(losses).sum() / len(losses)


@pytest.mark.parametrize(("objective", "on_policy"), [(grpo(0.2, 0.2), False), (sspo(), True)])
@pytest.mark.parametrize("reward_weight", [0.0, 1.0])
def test_gradient_is_that_of_the_formula(folders, device, batches, objective, on_policy, reward_weight):
    policy = make_policy(folders, device, "moe", "qwen2", coef=0.3, reward_weight=reward_weight)
    batch, student, teacher = read_batch(batches["moe"]), reference(folders["moe"]), reference(folders["qwen2"])
    if on_policy:
        batch = [replace(g, rollouts=[replace(r, old_log_probs=None) for r in g.rollouts]) for g in batch]
    (taught,) = policy.teacher_log_probs([batch])
    record = policy.update(taught, objective)
    loss = naive(student, teacher, batch, 0.3, reward_weight, on_policy=on_policy)
    assert_same_gradients(gradients(policy), reference_gradients(student, loss))
    if not on_policy:
        values = [(r.old_log_probs - r.teacher_log_probs)[r.response_mask()] for r in rollouts_of(taught)]
        expected = float(torch.cat([*map(torch.tensor, values)]).double().mean())
        assert update_metrics(record)["policy/kl_teacher"] == pytest.approx(expected, rel=1e-5)


def jsd(p, q, beta):
    """β KL(p‖m) + (1 − β) KL(q‖m) of probabilities, or KL(p‖q) at 0 and KL(q‖p) at 1."""

    def kl(a, b):
        return (a * (a / b).log()).sum(dim=1)

    m = beta * p + (1 - beta) * q
    return kl(p, q) if beta == 0 else kl(q, p) if beta == 1 else beta * kl(p, m) + (1 - beta) * kl(q, m)


def naive_divergence(student, teacher, batch, k, beta):
    """(1/N) Σ_i (1/|y_i|) Σ_t D of the teacher's k likeliest tokens, and of all others as one where k leaves some."""
    losses = []
    for group in batch:
        for rollout in group.rollouts:
            tokens = torch.tensor([[*group.prompt.tokens, *rollout.tokens.tolist()]])
            rows = slice(len(group.prompt.tokens) - 1, tokens.shape[1] - 1)
            logits = (model(tokens).logits[0, rows] for model in (teacher, student))
            p, q = (torch.softmax(of / tiny_policy.TEMPERATURE, dim=-1) for of in logits)
            if k < p.size(1):
                top = p.topk(k).indices
                p, q = (torch.cat([of.gather(1, top), of.scatter(1, top, 0).sum(1, keepdim=True)], 1) for of in (p, q))
            terms = jsd(p.detach(), q, beta)[torch.tensor(rollout.response_mask())]
            losses.append(terms.sum() / max(1, rollout.num_response_tokens))
    return torch.stack(losses).sum() / len(losses)


@pytest.mark.parametrize(("beta", "k", "reward_weight"), [(0.0, 5, 1.0), (0.3, 5, 0.0), (1.0, 5, 0.0), (0.5, 200, 1.0)])
def test_gradient_of_a_divergence_is_that_of_the_formula(folders, device, batches, beta, k, reward_weight):
    options = {"coef": 0.3, "reward_weight": reward_weight, "beta": beta, "top_k": k}
    policy = make_policy(folders, device, "moe", "qwen2", **options)
    batch, student, teacher = read_batch(batches["moe"]), reference(folders["moe"]), reference(folders["qwen2"])
    (taught,) = policy.teacher_log_probs([batch])
    noted = policy.old_log_probs(taught)  # the passes of other values take no notice of the tokens
    record = policy.update(taught, grpo(0.2, 0.2))
    divergence = naive_divergence(student, teacher, batch, k, beta)
    loss = 0.3 * divergence + naive(student, teacher, batch, 0.0, reward_weight, on_policy=False)
    assert_same_gradients(gradients(policy), reference_gradients(student, loss))
    assert record.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert update_metrics(record)["policy/teacher_divergence"] > 0
    (without,) = make_policy(folders, device, "moe", "qwen2").teacher_log_probs([batch])
    for one, other, old in zip(*map(rollouts_of, (taught, without, noted)), strict=True):
        assert one.teacher_log_probs.tolist() == other.teacher_log_probs.tolist()
        assert len(one.teacher_top_tokens) == len(one.tokens) * min(k, tiny_policy.VOCAB_SIZE)
        assert len(old.old_log_probs) == len(one.tokens)


def test_estimated_memory_is_that_of_its_weights(folders, device):
    policy = make_policy(folders, device, "dense", "glm4")
    weights = sum(parameter.nbytes for chunk in policy._teacher.chunks for parameter in chunk.parameters())
    run, config = replace(policy.run, model=replace(policy.run.model, path=str(folders["dense"]))), policy.folder.config
    assert host_memory(run, config).teacher == pytest.approx(weights, rel=1e-3)  # a router's biases are buffers
    assert [estimate(run, config, on_cuda=on_cuda)[0].teacher for on_cuda in (False, True)] == [
        0,
        pytest.approx(weights, rel=1e-3),
    ]
