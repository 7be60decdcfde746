"""Objectives against values of TRL's and verl's loss functions, which `tools/peer_vectors.py` wrote."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_sspo import objective as ours
from megatron_sspo.objective import Segments
from megatron_sspo.objective.average import average_of

VECTORS = json.loads(Path(__file__).with_name("peer_vectors.json").read_text(encoding="utf-8"))
CASES = VECTORS["cases"]


def evaluate(case):
    """Returns loss and gradient of our objective on the inputs of the vectors."""
    inputs = VECTORS["inputs"]
    objective = eval(case["objective"], {name: getattr(ours, name) for name in ours.__all__} | {"replace": replace})
    log_probs, old, advantages = (
        torch.tensor(inputs[name], dtype=torch.float64) for name in ("log_probs", "old_log_probs", "advantages")
    )
    divisor = average_of(objective).divisor(len(inputs["lengths"]), len(log_probs))
    loss = objective(log_probs.requires_grad_(), old, advantages, Segments.from_lengths(inputs["lengths"])).loss
    return loss.item() / divisor, torch.autograd.grad(loss, log_probs)[0] / divisor


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_gradient_and_value_are_those_of_the_peer(case):
    """Gradients agree always. Values agree but where the case says how they differ, and then they do differ."""
    loss, gradient = evaluate(case)
    expected = torch.tensor(case["gradient"], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)
    assert gradient.any()
    agrees = loss == pytest.approx(case["loss"], rel=1e-7)
    assert agrees is not bool(case["differs"])
