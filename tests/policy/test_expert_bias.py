"""Routers that choose experts by sigmoid scores and a bias, which is a float32 buffer and has no gradient."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tiny_policy import make_run, read_batch, reference

from megatron_sspo.objective import Penalties, sspo
from megatron_sspo.policy.policy import Policy

RATE = 0.01
MOVING = {"moe_router_bias_update_rate": RATE}
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
NAME = "mlp.gate.e_score_correction_bias"


both = pytest.mark.parametrize("kind", ["glm4", "mla"])


def biases(tensors):
    return {name: tensor.clone() for name, tensor in tensors if name.endswith(NAME)}


@torch.no_grad()
def tokens_of_experts(model, batch):
    """Returns the numbers of tokens of each layer's experts, by Transformers and one sequence at a time."""
    gates = {name: layer.mlp.gate for name, layer in model.model.layers.named_children() if hasattr(layer.mlp, "gate")}
    counts = {f"model.layers.{name}.{NAME}": torch.zeros(gate.num_experts) for name, gate in gates.items()}
    for gate, count in zip(gates.values(), counts.values(), strict=True):

        def add(gate, _, output, count=count):
            count += output[2].flatten().bincount(minlength=gate.num_experts)

        gate.register_forward_hook(add)
    for group in batch:
        for rollout in group.rollouts:
            model(torch.tensor([[*group.prompt.tokens, *rollout.tokens.tolist()]]))
    return counts


@pytest.mark.parametrize("kind", ["glm4", "glm4_odd", "mla"])
@pytest.mark.parametrize("fields", [{}, {"tokens": 4096}, {"share_prompts": False}, {"megatron": RECOMPUTE}], ids=str)
def test_an_update_moves_the_bias_towards_equal_use(folders, device, batches, kind, fields):
    """The counts are those of the sequences, however they are packed, share prompts, or are computed again."""
    batch, megatron = read_batch(batches[kind]), {**fields.get("megatron", {}), **MOVING}
    policy = Policy(make_run(**{**fields, "megatron": megatron}), folders[kind], device)
    before = biases(policy.weights())
    policy.update(batch, sspo())
    after = biases(policy.weights())
    counts = tokens_of_experts(reference(folders[kind]), batch)
    assert counts.keys() == after.keys() and len(counts) == (3 if kind in ("glm4", "mla") else 4)
    for name, count in counts.items():
        torch.testing.assert_close(after[name], before[name] + RATE * (count.mean() - count).sign(), rtol=0, atol=1e-7)


@both
def test_the_bias_is_float32_in_a_bfloat16_model(folders, device, batches, tmp_path, kind):
    fields = {"dtype": "bfloat16", "megatron": MOVING}
    policy = Policy(make_run(**fields), folders[kind], device)
    stored = biases(load_file(folders[kind] / "model.safetensors").items())
    assert all((tensor != tensor.bfloat16()).any() for tensor in stored.values())

    def same(found, expected):
        return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)

    policy.export(tmp_path / "start")
    assert same(biases(load_file(tmp_path / "start" / "model.safetensors").items()), stored)
    assert policy.weights().num_bytes == sum(tensor.nbytes for _, tensor in policy.weights())
    for part in policy.weights().parts(bucket_bytes=10**9):
        assert {entry.dtype.itemsize for entry in part.entries} == {4, 2}
    for _ in range(3):
        policy.update(read_batch(batches[kind]), sspo())
    moved = biases(policy.weights())
    steps = torch.cat([(moved[name] - stored[name]) / RATE for name in stored])
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-4)
    assert steps.abs().max() == pytest.approx(3, abs=1e-4)
    (tmp_path / "checkpoint").mkdir()
    policy.save(tmp_path / "checkpoint")
    for load in ("load", "load_resharded"):
        fresh = Policy(make_run(**fields), folders[kind], device)
        getattr(fresh, load)(tmp_path / "checkpoint")
        assert same(biases(fresh.weights()), moved)


def test_the_reference_policy_has_the_bias_of_the_start(folders, device, batches):
    batch = read_batch(batches["glm4"])
    fields = {"megatron": {"moe_router_bias_update_rate": 1.0}, "penalties": Penalties(kl_coef=0.1)}
    policy = Policy(make_run(**fields), folders["glm4"], device)
    (start,) = policy.reference_log_probs([batch])
    policy.update(batch, sspo())
    moved = biases(policy.weights())
    (found,) = policy.reference_log_probs([batch])
    for group, expected in zip(found, start, strict=True):
        for rollout, other in zip(group.rollouts, expected.rollouts, strict=True):
            assert rollout.reference_log_probs.tolist() == other.reference_log_probs.tolist()
    assert all(torch.equal(tensor, moved[name]) for name, tensor in biases(policy.weights()).items())


@both
def test_recorded_experts_are_replayed_after_the_bias_has_moved(folders, device, batches, kind):
    policy = Policy(make_run(routing_replay="R2"), folders[kind], device)
    noted = policy.old_log_probs(read_batch(batches[kind]))
    with torch.no_grad():
        for name, buffer in policy.chunks[0].named_buffers():
            if name.endswith("expert_bias"):
                buffer.neg_().mul_(10)  # without replay, tokens would go to other experts
    assert not policy.gradient(noted, sspo()).tokens["log_ratio"].any()
    policy.run = replace(policy.run, routing_replay="none")
    assert policy.gradient([replace(g, rollouts=[replace(r, routes=None) for r in g.rollouts]) for g in noted], sspo())
