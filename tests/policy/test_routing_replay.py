"""Routing replay in one process: compared with Transformers with the same experts, and refused inputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny_policy import ROUTERS, TEMPERATURE, log_probs, make_run, read_batch, reference, with_first

from megatron_sspo.batching.holders import with_rollouts
from megatron_sspo.batching.plan import prompt_variants
from megatron_sspo.batching.routes import pack_routes, unpack_routes
from megatron_sspo.errors import UserError
from megatron_sspo.objective import sspo
from megatron_sspo.policy.policy import Policy
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.types import Prompt, Sampling

SHAPE = ROUTERS["moe"]
each_family = pytest.mark.parametrize("kind", ["moe", "mla", "gpt_oss", "minimax", "qwen3_next"])


def routed(batches, kind="moe"):
    """Returns a batch with random routes, and numbers for those of their prompts, as from `Policy.scatter`."""
    batch = read_batch(batches[kind].with_name(f"{kind} routed.npz"))
    variants = iter(prompt_variants(batch, ROUTERS[kind]))
    return with_rollouts(batch, [replace(r, prompt_variant=next(variants)) for g in batch for r in g.rollouts])


def make(folders, device, replay="R3", kind="moe", **fields):
    return Policy(make_run(routing_replay=replay, **fields), folders[kind], device)


def all_old_log_probs(batch):
    return torch.cat([torch.tensor(r.old_log_probs) for group in batch for r in group.rollouts])


def all_routes(batch):
    return [rollout.routes.tolist() for group in batch for rollout in group.rollouts]


def force(model, routes):
    """Makes every router of the Transformers model choose `routes` [tokens, layers with experts, topk]."""
    mlps = [layer.mlp for layer in model.model.layers]
    gates = [getattr(mlp, name) for mlp in mlps for name in ("gate", "router") if hasattr(mlp, name)]
    for gate, chosen in zip(gates, routes.unbind(1), strict=True):

        def forward(hidden, *biases, gate=gate, chosen=chosen):
            logits = F.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight, getattr(gate, "bias", None))
            has_sigmoid = biases or hasattr(gate, "e_score_correction_bias")  # which is not in the weights
            scores = (logits.sigmoid() if has_sigmoid else logits.softmax(dim=-1)).gather(1, chosen)
            factor = getattr(gate, "routed_scaling_factor", 1.0)
            return logits, factor * scores / scores.sum(dim=-1, keepdim=True), chosen

        gate.forward = forward


@pytest.mark.parametrize("kind", ROUTERS)
def test_log_probs_are_those_of_transformers_with_the_same_experts(folders, device, batches, kind):
    batch, shape = routed(batches, kind), ROUTERS[kind]
    found = make(folders, device, kind=kind).old_log_probs(batch)
    model = reference(folders[kind])
    for group, wanted_of in zip(found, batch, strict=True):
        for rollout, wanted in zip(group.rollouts, wanted_of.rollouts, strict=True):
            routes = torch.from_numpy(unpack_routes(wanted.routes, shape).astype(np.int64))
            last = torch.arange(shape.topk).expand(1, shape.num_layers, -1)  # which has no routes
            force(model, torch.cat([routes, last]))
            with torch.no_grad():
                expected = log_probs(model, group.prompt, rollout)
            torch.testing.assert_close(torch.tensor(rollout.old_log_probs), expected, rtol=0, atol=1e-5)


@each_family
def test_replaying_recorded_routes_keeps_the_log_probs(folders, device, batches, kind):
    """R2 records the routes of π_old: as long as the policy has not changed, ρ is 1.

    To the bit, but with sinks: torch computes attention by another kernel where the mask has a gradient.
    """
    policy = make(folders, device, "R2", kind)
    noted = policy.old_log_probs(read_batch(batches[kind]))
    assert all(len(rollout.routes) for group in noted for rollout in group.rollouts)
    record = policy.gradient(noted, sspo())
    assert record.tokens["log_ratio"].abs().max() <= (2e-6 if kind == "gpt_oss" else 0)


@each_family
def test_routes_are_replayed_after_the_routers_have_moved(folders, device, batches, kind):
    policy = make(folders, device, "R2", kind)
    noted = policy.old_log_probs(read_batch(batches[kind]))
    with torch.no_grad():
        for name, parameter in policy.chunks[0].named_parameters():
            if "router" in name:
                parameter.copy_(-parameter)  # without replay, every token would go to its least likely experts
    again = policy.old_log_probs(noted)
    assert all_routes(again) != all_routes(noted)
    policy.run = replace(policy.run, routing_replay="R3")
    kept = policy.old_log_probs(noted)
    assert all_routes(kept) == all_routes(noted)
    assert (all_old_log_probs(kept) - all_old_log_probs(again)).abs().max() > 0.01


def test_routes_that_cannot_be_are_refused(folders, device, batches):
    with pytest.raises(ValueError, match="8 choices a token do not divide"):
        unpack_routes(pack_routes(np.zeros((3, 3, 2)), 8), SHAPE)
    with pytest.raises(ValueError, match="experts 0 to 9 of 8"):
        unpack_routes(pack_routes(np.arange(8).reshape(1, 4, 2) + np.array([0, 2]), 16), SHAPE)
    policy, batch = make(folders, device), routed(batches)
    too_few = pack_routes(np.zeros((2, 4, 2)), 8)
    with pytest.raises(ValueError, match="routes of 2 tokens, and 11 tokens"):
        policy.update(with_first(batch, routes=too_few), sspo())
    with pytest.raises(ValueError, match="a rollout has no routes to replay"):
        policy.update(with_first(batch, routes=None), sspo())


def test_a_model_without_experts_has_nothing_to_replay(folders, device):
    with pytest.raises(UserError, match="routing_replay is on, and the model has no experts"):
        Policy(make_run(routing_replay="R2"), folders["dense"], device)


def test_routes_of_the_embedded_engine_bring_its_log_probs_nearer(folders, device):
    """Weights in FP8 make the engine's routers choose other experts than the trainer's for some tokens."""
    engine = embedded.engine(folders["moe"], device=device, quantize="fp8", routes=True)
    engine.load_weights(load_file(folders["moe"] / "model.safetensors").items(), 0)
    prompts = [Prompt(id=str(n), tokens=(n + 2, n + 3, n + 4), answer="") for n in range(8)]
    groups = engine.generate(prompts, Sampling(max_tokens=24, temperature=TEMPERATURE), group_size=4, seed=0)

    def difference(replay):
        policy = make(folders, device, replay)
        found = [r for group in policy.old_log_probs(*policy.scatter([groups])) for r in group.rollouts]
        return np.concatenate([np.abs(r.old_log_probs - r.rollout_log_probs) for r in found]).mean()

    assert difference("R3") < 0.8 * difference("none")
