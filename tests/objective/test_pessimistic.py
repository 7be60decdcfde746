"""`Pessimistic` gates: vectors, the formula written naively, both sides, limits; the laws are in test_gates.py."""

import json
from pathlib import Path

import pytest
import torch

from megatron_sspo.objective import (
    AtanLog,
    Clip,
    ExpAtan,
    ExpSig,
    Gumbel,
    Identity,
    Pessimistic,
    SequenceObjective,
    SigLog,
    Sigmoid,
    arithmetic,
    geometric,
)
from tests.objective.reference_vectors import check_vector
from tests.objective.test_gates import ADVANTAGES, log_ratios, tensor

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "pessimistic.json").read_text())
KINDS = {
    "atanlog": AtanLog,
    "siglog": SigLog,
    "expsig": ExpSig,
    "expatan": ExpAtan,
    "gumbel": Gumbel,
    "sigmoid": Sigmoid,
}
BELOW_RATIO = [AtanLog(), SigLog(0.6, 0.5), Gumbel(), Clip()]  # w ≤ 1
SSPO = [AtanLog(), SigLog(), ExpSig(), ExpAtan(), Gumbel()]
ALL = [*SSPO, AtanLog(0.2, 1.5), Sigmoid(), Sigmoid(3.0, 2.5), Clip(), Clip(0.1, 0.5), Identity()]
of_advantage = pytest.mark.parametrize("advantage", ADVANTAGES)


def every(gates):
    return pytest.mark.parametrize("gate", gates, ids=str)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("case", VECTORS, ids=[f"{n}-{case['gate']}" for n, case in enumerate(VECTORS)])
def test_vectors(case, dtype):
    gate = Pessimistic(KINDS[case["gate"]](**case["params"]), case["cap"])
    pool = {"geometric": geometric, "arithmetic": arithmetic}[case["pool"]]
    check_vector(case, SequenceObjective(gate, pool), dtype)


@of_advantage
@every(BELOW_RATIO)
def test_it_is_the_minimum_of_ppo_where_w_is_at_most_1(gate, advantage):
    log_ratio, sign = log_ratios(), tensor(advantage)
    ratio, gated = log_ratio.exp(), gate.log_gate(log_ratio, sign).exp()
    expected = torch.minimum(ratio * advantage, gated * advantage)
    actual = Pessimistic(gate).log_gate(log_ratio, sign).exp() * advantage
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


@every([ExpSig(), ExpAtan()])
def test_it_goes_by_side_where_w_exceeds_1(gate):
    """Just above ρ = 1 these gates exceed ρ, and the minimum would be another function."""
    log_ratio, sign = tensor([0.05, -0.05]), tensor(1.0)
    actual = Pessimistic(gate).log_gate(log_ratio, sign)
    assert actual[0] == gate.log_gate(log_ratio, sign)[0] > log_ratio[0]
    assert actual[1] == log_ratio[1]


@of_advantage
@every(ALL)
def test_each_side_is_what_it_says(gate, advantage):
    log_ratio, sign = log_ratios(), tensor(advantage)
    wrapped = Pessimistic(gate)
    restores = advantage * log_ratio < 0
    at_one = gate.log_gate(tensor(0.0), sign)
    assert wrapped.log_gate(log_ratio, sign)[~restores].equal(gate.log_gate(log_ratio, sign)[~restores])
    assert wrapped.weight(log_ratio, sign)[~restores].equal(gate.weight(log_ratio, sign)[~restores])
    tangent = at_one + log_ratio[restores] / at_one.exp()
    torch.testing.assert_close(wrapped.log_gate(log_ratio, sign)[restores], tangent)
    assert (wrapped.weight(log_ratio, sign)[restores] == torch.exp(-at_one)).all()


@of_advantage
@every(SSPO)
def test_ratio_and_weight_1_on_the_restoring_side(gate, advantage):
    log_ratio, sign = log_ratios(), tensor(advantage)
    restores = advantage * log_ratio < 0
    assert Pessimistic(gate).log_gate(log_ratio, sign)[restores].equal(log_ratio[restores])
    assert (Pessimistic(gate).weight(log_ratio, sign)[restores] == 1).all()


@every(SSPO)
def test_bounded_where_the_advantage_pushes(gate):
    far = tensor([-1e4, 1e4])
    assert Pessimistic(gate).log_gate(far, tensor(1.0))[1] == gate.log_gate(far, tensor(1.0))[1] < 4
    assert Pessimistic(gate).log_gate(far, tensor(-1.0))[0] == gate.log_gate(far, tensor(-1.0))[0] > -4


@of_advantage
@every([Clip(), Clip(0.1, 0.5), Identity()])
def test_what_is_pessimistic_already_stays_as_it_is(gate, advantage):
    log_ratio, sign = log_ratios(), tensor(advantage)
    assert Pessimistic(gate).log_gate(log_ratio, sign).equal(gate.log_gate(log_ratio, sign))
    assert Pessimistic(gate).weight(log_ratio, sign).equal(gate.weight(log_ratio, sign))


def test_the_cap_is_that_of_dual_clip():
    """max(min(ρ Â, clip(ρ) Â), c Â) where Â < 0, and no cap where Â > 0."""
    log_ratio = log_ratios()
    ratio = log_ratio.exp()
    capped = Pessimistic(Clip(), cap=3.0)
    for advantage in (1.3, -0.7):
        minimum = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        expected = torch.maximum(minimum, tensor(3.0 * advantage)) if advantage < 0 else minimum
        actual = capped.log_gate(log_ratio, tensor(advantage)).exp() * advantage
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)
    assert capped.weight(tensor([1.0, 1.2]), tensor(-1.0)).tolist() == [1.0, 0.0]
    assert capped.weight(tensor([-2.0]), tensor(1.0)).tolist() == [1.0]
