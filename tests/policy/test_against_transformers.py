"""One process of Megatron compared with Transformers on the same folder: log-probs, gradients, engine, export."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from layouts import gather_gradients as gradients
from naive import naive_reinforce, naive_sspo, reference_gradients
from tiny_policy import TEMPERATURE, log_probs, make_run, read_batch, reference

from megatron_sspo.objective import sspo
from megatron_sspo.policy.names import logical_parameters
from megatron_sspo.policy.policy import Policy
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.run import Optimizer
from megatron_sspo.types import Prompt

KINDS = ["moe", "dense", "tied", "one_group", "qwen3", "qwen2", "mixtral", "glm4", "glm4_odd", "mla", "mla_odd"]
KINDS += ["mla_glm", "mla_kimi", "gpt_oss", "qwen3_next", "qwen3_5", "minimax"]
if find_spec("megatron.core.transformer.mla_qk_norm_config"):
    KINDS.remove("mla_odd")  # newer releases build such queries with Transformer Engine alone
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def policies(folders, device):
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = Policy(make_run(optimizer=Optimizer(lr=1e-3, clip_grad=1e9)), folders[kind], device)
            start = {name: p.detach().clone() for name, p in logical_parameters(modules(made[kind]))}
            made[kind].start = start
        policy = made[kind]
        policy.set_optimizer(Optimizer(lr=1e-3, clip_grad=1e9), 10)  # so large that the gradient is never clipped
        with torch.no_grad():
            for name, parameter in logical_parameters(modules(policy)):
                parameter.copy_(policy.start[name])
        return policy

    return of


def modules(policy):
    return [chunk.module for chunk in policy.chunks]


def assert_same_gradients(found, expected):
    assert found.keys() == expected.keys()
    scale = max(float(tensor.abs().max()) for tensor in expected.values())
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}")


@every_kind
def test_old_log_probs(policies, folders, batches, kind):
    batch, model = read_batch(batches[kind]), reference(folders[kind])
    for group in policies(kind).old_log_probs(batch):
        for rollout in group.rollouts:
            with torch.no_grad():
                expected = log_probs(model, group.prompt, rollout)
            torch.testing.assert_close(torch.tensor(rollout.old_log_probs), expected, rtol=0, atol=1e-4)


@every_kind
def test_gradient_is_that_of_the_papers_formula(policies, folders, batches, kind):
    batch, model, policy = read_batch(batches[kind]), reference(folders[kind]), policies(kind)
    record = policy.update(batch, sspo())
    loss = naive_sspo(model, batch)
    expected = reference_gradients(model, loss)
    assert record.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    norm = torch.stack([parameter.grad.double().norm() for parameter in model.parameters()]).norm()
    assert record.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert_same_gradients(gradients(policy), expected)


@every_kind
def test_gradient_on_policy_is_reinforce(policies, folders, batches, kind):
    model, policy = reference(folders[kind]), policies(kind)
    batch = [
        replace(group, rollouts=[replace(rollout, old_log_probs=None) for rollout in group.rollouts])
        for group in read_batch(batches[kind])
    ]
    policy.update(batch, sspo())
    found = gradients(policy)
    assert_same_gradients(found, reference_gradients(model, naive_reinforce(model, batch)))
    noted = policies(kind).old_log_probs(batch)
    policies(kind).update(noted, sspo())
    assert_same_gradients(gradients(policy), found)


@every_kind
def test_a_step_is_adams(policies, folders, batches, kind):
    batch, model, policy = read_batch(batches[kind]), reference(folders[kind]), policies(kind)
    before = {name: tensor.clone() for name, tensor in policy.weights()}
    assert policy.update(batch, sspo()).learning_rate == pytest.approx(1e-3)
    expected = reference_gradients(model, naive_sspo(model, batch))
    for name, tensor in policy.weights():
        if name.endswith("e_score_correction_bias"):
            assert torch.equal(tensor, before[name])
            continue
        gradient = expected[name]
        far = gradient.abs() > 1e-5  # where Adam's first step is η · sign
        step = (tensor - before[name])[far]
        torch.testing.assert_close(step, -1e-3 * gradient[far].sign(), rtol=0.01, atol=1e-6)


@pytest.mark.parametrize(
    "kind", ["moe", "dense", "tied", "glm4", "glm4_odd", "mla", "gpt_oss", "qwen3_next", "qwen3_5", "minimax"]
)
def test_the_engine_reports_the_policys_log_probs(policies, folders, kind):
    policy, engine = policies(kind), embedded.engine(folders[kind])
    with torch.no_grad():
        for _, parameter in logical_parameters(modules(policy)):
            parameter.mul_(1.03)  # so that the engine has to use the policy's weights and not the folder's
    engine.load_weights(policy.weights(), 0)
    prompts = [Prompt(id=str(n), tokens=tuple(range(n + 2, 2 * n + 5)), answer="") for n in range(4)]
    sampling = replace(policy.run.rollouts.sampling, max_tokens=24)
    groups = engine.generate(prompts, sampling, group_size=3, seed=0)
    assert sampling.temperature == TEMPERATURE
    difference = 0.0
    for group in policy.old_log_probs(groups):
        for rollout in group.rollouts:
            assert len(rollout.old_log_probs) == len(rollout.tokens) > 0
            for a, b in zip(rollout.old_log_probs, rollout.rollout_log_probs, strict=True):
                difference = max(difference, abs(a - b))
    assert 0 <= difference < 1e-4
    engine.close()


@every_kind
def test_transformers_loads_the_export(policies, folders, batches, kind, tmp_path):
    policy = policies(kind)
    policy.update(read_batch(batches[kind]), sspo())
    policy.export(tmp_path / "model")
    exported = reference(tmp_path / "model")
    batch = read_batch(batches[kind])
    moved = 0.0
    for group in policy.old_log_probs(batch):
        for rollout in group.rollouts:
            with torch.no_grad():
                values, before = (log_probs(m, group.prompt, rollout) for m in (exported, reference(folders[kind])))
            torch.testing.assert_close(torch.tensor(rollout.old_log_probs), values, rtol=0, atol=1e-4)
            moved = max([moved, *(values - before).abs().tolist()])
    assert moved > 1e-2  # the export is of the weights after the update
    assert (tmp_path / "model" / "tokenizer.json").exists()
