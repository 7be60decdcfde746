"""Metrics of the routers and of the penalties, against numbers from recorded routes and log-probs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from layouts import AUXILIARY
from tiny_policy import make_run, read_batch

from megatron_sspo.batching.routes import RouterShape, unpack_routes
from megatron_sspo.objective import Penalties, kl, sspo
from megatron_sspo.policy.metrics import update_metrics
from megatron_sspo.policy.policy import Policy

SHAPE = RouterShape(num_layers=4, topk=2, num_experts=8)


def metrics(folders, device, batch, kind="moe", **fields):
    return update_metrics(Policy(make_run(**fields), folders[kind], device).update(batch, sspo()))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tokens": 4096},
        {"share_prompts": False},
        {"megatron": {"recompute_granularity": "selective", "recompute_modules": ["moe"]}},
        {"routing_replay": "R2"},
    ],
)
def test_loads_are_those_of_the_recorded_routes(folders, device, batches, fields):
    """Each token counts once for each sequence, however the sequences are packed, shared and recomputed."""
    batch = read_batch(batches["moe"])
    noted = Policy(make_run(routing_replay="R2"), folders["moe"], device).old_log_probs(batch)
    routes = [unpack_routes(r.routes, SHAPE) for group in noted for r in group.rollouts if r.routes is not None]
    lengths = [len(g.prompt.tokens) + len(r.tokens) for g in batch for r in g.rollouts]
    chosen = torch.from_numpy(np.concatenate(routes).astype("int64"))
    assert len(chosen) == sum(lengths)
    tokens = torch.stack([chosen[:, layer].flatten().bincount(minlength=8) for layer in range(4)]).double()
    largest = tokens.amax(dim=1) / tokens.mean(dim=1)
    found = metrics(folders, device, batch, **fields)
    assert found["router/max_load"] == pytest.approx(float(largest.mean()))
    assert found["router/max_load_worst_layer"] == pytest.approx(float(largest.max()))
    assert found["router/unused_experts"] == pytest.approx(float((tokens == 0).double().mean()))
    assert not [name for name in found if name.startswith("router/") and name.endswith("loss")]


def test_the_loss_of_the_routers_is_that_of_a_microbatch(folders, device, batches):
    """The load-balancing loss is Σ_e f_e P_e · experts, 1 where tokens and probabilities are spread evenly."""
    found = metrics(folders, device, read_batch(batches["moe"]), megatron=AUXILIARY)
    assert 1 < found["router/load_balancing_loss"] < 4
    assert "router/global_load_balancing_loss" not in found


def test_a_model_without_experts_has_no_such_metrics(folders, device, batches):
    found = metrics(folders, device, read_batch(batches["dense"]), kind="dense")
    assert not [name for name in found if name.startswith("router/")]


def test_the_penalty_and_the_divergence_from_the_reference(folders, device, batches):
    penalties = Penalties(kl_coef=0.1, kl_estimator="k3")
    batch = read_batch(batches["dense"])
    found = metrics(folders, device, batch, kind="dense", penalties=penalties)
    without = metrics(folders, device, batch, kind="dense")
    policy = Policy(make_run(), folders["dense"], device)
    current = [r for g in policy.old_log_probs(batch) for r in g.rollouts]
    given = [r for g in batch for r in g.rollouts]
    values = [
        kl(torch.tensor(now.old_log_probs), torch.tensor(was.reference_log_probs), "k3")[
            torch.tensor(was.response_mask())
        ]
        for now, was in zip(current, given, strict=True)
    ]
    assert found["policy/kl_reference"] == pytest.approx(float(torch.cat(values).double().mean()), rel=1e-3)
    means = sum(float(value.double().mean()) for value in values if len(value)) / len(values)
    assert found["policy/penalty"] == pytest.approx(0.1 * means, rel=1e-3)
    assert found["policy/loss"] == pytest.approx(without["policy/loss"] + found["policy/penalty"], rel=1e-5)
    assert without["policy/penalty"] == 0.0
    bare = [replace(g, rollouts=[replace(r, reference_log_probs=None) for r in g.rollouts]) for g in batch]
    assert "policy/kl_reference" not in metrics(folders, device, bare, kind="dense")
