"""Queries and keys are turned as in Megatron's layers, to the last bit, with one computation of cosines for a row."""

import pytest
import torch
from tiny_policy import make_run, read_batch

from megatron_sspo.objective import sspo
from megatron_sspo.policy.policy import Policy
from megatron_sspo.policy.shared_prompts.rotary import RowRotaryEmbedding, SharedRotaryEmbedding

RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTED = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}


def results(policy, model, batch):
    """Returns log-probs and the gradient."""
    found = [torch.tensor(r.old_log_probs) for group in policy.old_log_probs(batch) for r in group.rollouts]
    policy.gradient(batch, sspo())
    return found, {name: parameter.main_grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        ("moe", "float32", {}),
        ("one_group", "bfloat16", {}),
        ("qwen3", "float32", RECOMPUTED),
        ("moe", "float32", SELECTED),
    ],
)
def test_results_are_those_of_angles_in_every_layer(kind, dtype, options, share, folders, batches, device):
    from megatron.core.utils import unwrap_model

    batch = read_batch(batches[kind])
    policy = Policy(make_run(dtype=dtype, share_prompts=share, megatron=options), folders[kind], device)
    (chunk,) = policy.chunks
    model = unwrap_model(chunk)
    assert isinstance(model.rotary_pos_emb, RowRotaryEmbedding)
    found, gradients = results(policy, model, batch)
    model.rotary_pos_emb = SharedRotaryEmbedding(model.rotary_pos_emb)  # Megatron's layers turn queries and keys
    expected, expected_gradients = results(policy, model, batch)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    for name, gradient in expected_gradients.items():
        assert gradient.any() and torch.equal(gradients[name], gradient), name
