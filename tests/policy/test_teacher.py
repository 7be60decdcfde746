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


def test_estimated_memory_is_that_of_its_weights(folders, device):
    policy = make_policy(folders, device, "dense", "glm4")
    weights = sum(parameter.nbytes for chunk in policy._teacher.chunks for parameter in chunk.parameters())
    run, config = replace(policy.run, model=replace(policy.run.model, path=str(folders["dense"]))), policy.folder.config
    assert host_memory(run, config).teacher == pytest.approx(weights, rel=1e-3)  # a router's biases are buffers
    assert [estimate(run, config, on_cuda=on_cuda)[0].teacher for on_cuda in (False, True)] == [
        0,
        pytest.approx(weights, rel=1e-3),
    ]
