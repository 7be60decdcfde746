"""A policy on the GPU: log-probs, gradients, steps, shared prompts, replayed routes, checkpoints, embedded engine."""

from dataclasses import replace

import pytest
import torch

from megatron_sspo.objective import sspo
from megatron_sspo.policy.policy import Policy
from megatron_sspo.policy.with_cuda.installed import has_transformer_engine
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.run import Optimizer
from megatron_sspo.types import Prompt
from tests.gpu.conftest import KINDS
from tests.policy import layouts
from tests.policy.naive import naive_sspo, reference_gradients
from tests.policy.tiny_policy import log_probs, make_run, reference

every_kind = pytest.mark.parametrize("kind", KINDS)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def largest_error(dtype):
    """Returns the root mean square by which log-probs of the tiny models may be from Transformers' in float32.

    Transformer Engine multiplies float32 matrices in TensorFloat-32, which has three digits as bfloat16 has two. Single
    tokens may be farther off, because rounding may choose other experts.
    """
    if dtype == "bfloat16":
        return 0.1
    return 0.05 if has_transformer_engine() else 1e-5


def root_mean_square(values):
    return float(values.double().square().mean().sqrt())


def make(folders, kind, device, dtype, **fields):
    fields = {"optimizer": Optimizer(lr=1e-3, clip_grad=1e9), "share_prompts": False, **fields}
    return Policy(make_run(tokens=256, dtype=dtype, **fields), folders[kind], device)


def old_log_probs(batch):
    return torch.cat([torch.tensor(r.old_log_probs) for group in batch for r in group.rollouts])


def gradients(policy):
    """Returns Hugging Face name -> gradient of the last pass, on the CPU in float32."""
    return {name: tensor.float().cpu() for name, tensor in layouts.gather_gradients(policy).items()}


def flat(tensors):
    return torch.cat([tensors[name].flatten().double() for name in sorted(tensors)])


def difference(one, other):
    return float((one - other).norm() / other.norm())


def test_there_is_a_gpu(device):
    assert device.type == "cuda", "torch sees no GPU: nvidia-smi, and torch.version.cuda, say why"


@every_dtype
@every_kind
def test_log_probs_are_those_of_transformers(folders, batches, device, kind, dtype, note):
    found = old_log_probs(make(folders, kind, device, dtype).old_log_probs(batches[kind]))
    model = reference(folders[kind])
    with torch.no_grad():
        expected = torch.cat([log_probs(model, group.prompt, r) for group in batches[kind] for r in group.rollouts])
    error = root_mean_square(found - expected)
    note(log_probs=error)
    assert error < largest_error(dtype)


@every_dtype
@every_kind
def test_the_gradient_is_that_of_the_papers_formula(folders, batches, device, kind, dtype, note):
    policy, model = make(folders, kind, device, dtype), reference(folders[kind])
    record = policy.gradient(batches[kind], sspo())
    loss = naive_sspo(model, batches[kind])
    expected = reference_gradients(model, loss)
    found = gradients(policy)
    assert found.keys() == expected.keys()
    error = difference(flat(found), flat(expected))
    note(gradient=error)
    exact = dtype == "float32" and not has_transformer_engine()
    assert record.loss == pytest.approx(float(loss.detach()), abs=1e-5 if exact else 0.02)
    assert error < (1e-4 if exact else 0.1)


@every_dtype
@pytest.mark.parametrize("kind", ["moe", "dense"])
def test_shared_prompts_change_nothing(folders, batches, device, kind, dtype, note):
    shared, separate = (make(folders, kind, device, dtype, share_prompts=share) for share in (True, False))
    # Transformer Engine's attention for float32 may refuse such rows; then they are separate
    assert "not shared" not in shared.kernels or (dtype == "float32" and has_transformer_engine())
    values = [old_log_probs(policy.old_log_probs(batches[kind])) for policy in (shared, separate)]
    error = root_mean_square(values[0] - values[1])
    vectors = []
    for policy in (shared, separate):
        policy.gradient(batches[kind], sspo())
        vectors.append(flat(gradients(policy)))
    note(log_probs=error, gradient=difference(*vectors))
    assert error < largest_error(dtype)
    assert difference(*vectors) < (1e-4 if largest_error(dtype) < 1e-4 else 0.1)


@every_dtype
def test_a_step_moves_against_the_gradient(folders, batches, device, dtype):
    policy = make(folders, "moe", device, dtype)
    before = {name: tensor.clone() for name, tensor in policy.weights()}
    record = policy.update(batches["moe"], sspo())
    gradient = gradients(policy)
    assert record.learning_rate == pytest.approx(1e-3) and record.grad_norm > 0
    for name, tensor in policy.weights():
        step = (tensor - before[name]).float().cpu()
        far = gradient[name].abs() > 1e-4  # there the first step of Adam is η · sign
        assert (step[far] * gradient[name][far] <= 0).all(), name
        assert step.abs().max() < (2e-3 if dtype == "float32" else 2e-2)


@every_dtype
def test_routes_of_the_old_policy_are_replayed(folders, batches, device, dtype):
    policy = make(folders, "moe", device, dtype, routing_replay="R2")
    noted = policy.old_log_probs(batches["moe"])
    record = policy.gradient(noted, sspo())
    assert root_mean_square(torch.as_tensor(record.tokens["log_ratio"])) < largest_error(dtype)
    with torch.no_grad():
        for name, parameter in policy.chunks[0].named_parameters():
            if "router" in name:
                parameter.copy_(-parameter)  # without replay, every token would go to its least likely experts
    policy.run = replace(policy.run, routing_replay="R3")
    kept = policy.old_log_probs(noted)
    routes = [[r.routes.tolist() for group in batch for r in group.rollouts] for batch in (kept, noted)]
    assert routes[0] == routes[1]


@every_dtype
@pytest.mark.parametrize("kind", ["moe", "tied"])
def test_a_checkpoint_continues_to_the_bit(folders, batches, device, kind, dtype, tmp_path):
    policy = make(folders, kind, device, dtype)
    policy.update(batches[kind], sspo())
    path = tmp_path / "checkpoint"
    path.mkdir()
    policy.save(path)
    again = make(folders, kind, device, dtype)
    again.load(path)
    for (name, one), (other_name, other) in zip(policy.weights(), again.weights(), strict=True):
        assert name == other_name and torch.equal(one, other), name
    records = [each.update(batches[kind], sspo()) for each in (policy, again)]
    assert records[0].loss == records[1].loss
    assert records[0].grad_norm == pytest.approx(records[1].grad_norm, rel=1e-4)


@every_dtype
@pytest.mark.parametrize("kind", ["moe", "qwen3"])
def test_the_embedded_engine_has_the_policys_log_probs(folders, device, kind, dtype, note):
    policy, engine = make(folders, kind, device, dtype), embedded.engine(folders[kind])
    engine.load_weights(policy.weights(), 0)
    prompts = [Prompt(id=str(n), tokens=tuple(range(n + 2, 2 * n + 5)), answer="") for n in range(4)]
    groups = engine.generate(prompts, replace(policy.run.rollouts.sampling, max_tokens=24), group_size=3, seed=0)
    sampled = torch.cat([torch.tensor(r.rollout_log_probs) for group in groups for r in group.rollouts])
    error = root_mean_square(old_log_probs(policy.old_log_probs(groups)) - sampled)
    note(log_probs=error)
    assert len(sampled) and error < largest_error(dtype)
    engine.close()


@every_dtype
def test_an_export_has_the_policys_weights(folders, batches, device, dtype, tmp_path):
    policy = make(folders, "moe", device, dtype)
    policy.update(batches["moe"], sspo())
    policy.export(tmp_path / "model")
    exported = reference(tmp_path / "model").state_dict()
    weights = dict(policy.weights())
    loaded = make({"moe": tmp_path / "model"}, "moe", device, dtype)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.weights())
    assert exported["lm_head.weight"].equal(weights["lm_head.weight"].float().cpu())
