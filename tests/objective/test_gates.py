"""Every gate × every law, and the paper's formulas written naively in ρ."""

import math

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
    SigLog,
    Sigmoid,
    Smoothed,
)

ADVANTAGES = [1.3, -0.7, 0.0]
TEMPERED = [AtanLog, SigLog, ExpSig, ExpAtan]
SSPO = [gate(*taus) for gate in TEMPERED for taus in ((0.3, 0.2), (0.6, 0.5), (0.2, 1.5))] + [Gumbel()]
SOFT = [*SSPO, Sigmoid(), Sigmoid(4.0, 3.0)]
SMOOTH = [*SOFT, Identity()]
ALL = [*SMOOTH, Clip(), Clip(3e-4, 4e-4), Clip(0.1, 0.5)]
PESSIMISTIC = [Pessimistic(gate) for gate in (*SSPO, Sigmoid(), Sigmoid(3.0, 2.5), Identity())]
PESSIMISTIC_SSPO = [gate for gate in PESSIMISTIC if isinstance(gate.gate, tuple(map(type, SSPO)))]
CAPPED = [Pessimistic(gate, cap) for gate, cap in ((AtanLog(), 1.5), (Sigmoid(), 2.0), (Clip(0.1, 0.5), 2.0))]
PEAK_IN_MULTIPLIER = [gate for gate in SSPO if isinstance(gate, ExpSig | ExpAtan)]  # condition (iii.1)
PEAK_IN_WEIGHT = [gate for gate in SSPO if isinstance(gate, Gumbel | AtanLog | SigLog)]  # condition (iii.2)

of_gate = pytest.mark.parametrize("advantage", ADVANTAGES)


def every(gates):
    return pytest.mark.parametrize("gate", gates, ids=str)


def log_ratios(low=-3.0, high=3.0, count=601):
    """Returns log ratios; they include exactly 0 if the count is odd and the range is symmetric."""
    grid = torch.linspace(low, high, count, dtype=torch.float64)
    return torch.where(grid.abs() < 1e-12, 0.0, grid)


def tensor(value, dtype=torch.float64):
    return torch.tensor(value, dtype=dtype)


def gradient_of_log_gate(gate, log_ratio, advantage):
    log_ratio = log_ratio.clone().requires_grad_()
    return torch.autograd.grad(gate.log_gate(log_ratio, advantage).sum(), log_ratio)[0]


# --- references: the paper's formulas


def tau(gate, advantage):
    return gate.tau_pos if advantage > 0 else gate.tau_neg


def clip_reference(gate, ratio, advantage):
    if advantage > 0:
        return torch.minimum(ratio, tensor(1 + gate.eps_high))
    return torch.maximum(ratio, tensor(1 - gate.eps_low))


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


REFERENCE = {
    Identity: lambda gate, ratio, advantage: ratio,
    Clip: clip_reference,
    Sigmoid: lambda gate, ratio, a: sigmoid(tau(gate, a) * (ratio - 1)) * 4 / tau(gate, a),
    ExpSig: lambda gate, ratio, a: torch.exp(4 * tau(gate, a) * sigmoid((ratio - 1) / tau(gate, a)) - 2 * tau(gate, a)),
    ExpAtan: lambda gate, ratio, a: torch.exp(tau(gate, a) * torch.atan((ratio - 1) / tau(gate, a))),
    Gumbel: lambda gate, ratio, a: torch.exp(-torch.exp(-(ratio - 1)) + 1),
    AtanLog: lambda gate, ratio, a: torch.exp(tau(gate, a) * torch.atan(torch.log(ratio) / tau(gate, a))),
    SigLog: lambda gate, ratio, a: torch.exp(
        4 * tau(gate, a) * sigmoid(torch.log(ratio) / tau(gate, a)) - 2 * tau(gate, a)
    ),
}


@of_gate
@every(ALL)
def test_gate_is_the_formula_of_the_paper(gate, advantage):
    log_ratio = log_ratios()
    expected = REFERENCE[type(gate)](gate, log_ratio.exp(), advantage)
    torch.testing.assert_close(gate.log_gate(log_ratio, tensor(advantage)).exp(), expected, rtol=1e-12, atol=1e-14)


@of_gate
@every(ALL)
def test_weight_is_the_derivative_of_the_formula_of_the_paper(gate, advantage):
    ratio = log_ratios().exp().requires_grad_()
    reference = REFERENCE[type(gate)](gate, ratio, advantage)
    (slope,) = torch.autograd.grad(reference.sum(), ratio)
    expected = (slope / reference * ratio).detach()
    torch.testing.assert_close(gate.weight(ratio.detach().log(), tensor(advantage)), expected, rtol=1e-9, atol=1e-12)


# --- laws


@of_gate
@every([*ALL, *PESSIMISTIC, Smoothed(), Smoothed(0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_is_the_gradient_of_log_gate(gate, advantage, dtype):
    """Both agree to relative rounding, also in the tails, where the gradient is small but must be accurate."""
    log_ratio = log_ratios().to(dtype)
    weight = gate.weight(log_ratio, tensor(advantage, dtype))
    gradient = gradient_of_log_gate(gate, log_ratio, tensor(advantage, dtype))
    # The exponent of a weight of e^{-100} has a rounding error of 100 ε. Smaller weights count as 0.
    torch.testing.assert_close(gradient, weight, rtol=200 * torch.finfo(dtype).eps, atol=math.exp(-60))


@of_gate
@every([*SMOOTH, *PESSIMISTIC])
def test_i_continuously_differentiable(gate, advantage):
    log_ratio, step = log_ratios(), 1e-6
    difference = gate.log_gate(log_ratio + step, tensor(advantage)) - gate.log_gate(log_ratio - step, tensor(advantage))
    weight = gate.weight(log_ratio, tensor(advantage))
    torch.testing.assert_close(difference / (2 * step), weight, rtol=1e-6, atol=1e-8)
    # Continuous: neighbours on a fine grid are close. |dw/dlogρ| of every gate here is below 30.
    fine = gate.weight(log_ratios(count=600_001), tensor(advantage))
    assert fine.diff().abs().max() < 30 * 1e-5


@of_gate
@every([*SSPO, *PESSIMISTIC_SSPO])
def test_ii_value_1_at_1(gate, advantage):
    assert gate.log_gate(tensor(0.0), tensor(advantage)).item() == 0.0


@of_gate
@every([*SMOOTH, *PESSIMISTIC_SSPO])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ii_slope_1_at_1(gate, advantage, dtype):
    zero, advantage = tensor(0.0, dtype), tensor(advantage, dtype)
    value = gate.log_gate(zero, advantage).exp()
    epsilon = torch.finfo(dtype).eps
    assert (value * gate.weight(zero, advantage)).item() == pytest.approx(1.0, abs=4 * epsilon)
    assert (value * gradient_of_log_gate(gate, zero, advantage)).item() == pytest.approx(1.0, abs=4 * epsilon)


def assert_bell(values, peak):
    """Checks that values rise strictly to `peak` and then fall strictly, as far as rounding allows."""
    assert values.argmax().item() == peak
    assert (values[: peak + 1].diff() > 0).all()
    falling = values[peak:]
    falling = falling[falling > 1e-300]
    assert (falling.diff() < 0).all()


@of_gate
@every(PEAK_IN_MULTIPLIER)
def test_iii_1_multiplier_is_a_bell_around_1(gate, advantage):
    ratio = torch.linspace(0.01, 1.99, 199, dtype=torch.float64)
    multiplier = gate.weight(ratio.log(), tensor(advantage)) / ratio
    assert_bell(multiplier, peak=99)
    assert (gate.weight(tensor(40.0), tensor(advantage)) / math.exp(40)).item() < 1e-15


@of_gate
@every(PEAK_IN_WEIGHT)
def test_iii_2_weight_is_a_bell_around_1(gate, advantage):
    assert_bell(gate.weight(log_ratios(), tensor(advantage)), peak=300)
    assert gate.weight(tensor(-math.inf), tensor(advantage)).item() == 0.0  # w(0) = 0


@of_gate
@every(SOFT)
def test_weight_vanishes_as_the_ratio_grows(gate, advantage):
    weights = gate.weight(tensor([5.0, 10.0, 50.0, 1e4]), tensor(advantage))
    assert (weights.diff() <= 0).all()
    assert weights[-1] < 1e-6


@of_gate
@every([*ALL, *PESSIMISTIC, *CAPPED])
def test_iv_monotone(gate, advantage):
    values = gate.log_gate(log_ratios(-10, 10, 4001), tensor(advantage))
    assert (values.diff() >= 0).all()
    assert (gate.weight(log_ratios(-10, 10, 4001), tensor(advantage)) >= 0).all()


@of_gate
@pytest.mark.parametrize("taus", [(0.3, 0.2), (0.6, 0.5)])
def test_bounds(advantage, taus):
    t = taus[1] if advantage > 0 else taus[0]
    bounds = [
        (AtanLog(*taus), -t * math.pi / 2, t * math.pi / 2),
        (ExpAtan(*taus), t * math.atan(-1 / t), t * math.pi / 2),
        (SigLog(*taus), -2 * t, 2 * t),
        (ExpSig(*taus), 2 * t * math.tanh(-1 / (2 * t)), 2 * t),
        (Gumbel(), 1 - math.e, 1.0),
    ]
    for gate, low, high in bounds:
        inside = gate.log_gate(log_ratios(), tensor(advantage))
        assert ((inside >= low) & (inside <= high)).all(), gate
        ends = gate.log_gate(tensor([-1e9, 1e9]), tensor(advantage))
        torch.testing.assert_close(ends, tensor([low, high]), rtol=1e-8, atol=1e-8)


@of_gate
@every([*ALL, *PESSIMISTIC, *CAPPED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_far_away(gate, advantage, dtype):
    log_ratio = torch.tensor([-1e4, -200.0, -50.0, -20.0, 0.0, 20.0, 50.0, 200.0, 1e4], dtype=dtype)
    advantage = tensor(advantage, dtype)
    gradient = gradient_of_log_gate(gate, log_ratio, advantage)
    for values in (gate.log_gate(log_ratio, advantage), gradient, gate.weight(log_ratio, advantage)):
        assert values.dtype == dtype
        assert values.isfinite().all()
    torch.testing.assert_close(gradient, gate.weight(log_ratio, advantage), rtol=1e-5, atol=1e-7)


# --- which temperature, which side


@pytest.mark.parametrize("gate", [*TEMPERED, Sigmoid])
def test_temperature_follows_the_sign_of_the_advantage(gate):
    log_ratio = torch.full((3,), 0.4, dtype=torch.float64)
    mixed = gate(0.7, 0.2).log_gate(log_ratio, tensor([2.0, -2.0, 0.0]))
    positive = gate(0.2, 0.2).log_gate(log_ratio[0], tensor(1.0))
    negative = gate(0.7, 0.7).log_gate(log_ratio[0], tensor(1.0))
    assert mixed.tolist() == [positive.item(), negative.item(), negative.item()]


def test_defaults_are_those_of_the_papers():
    for gate in TEMPERED:
        assert (gate().tau_neg, gate().tau_pos) == (0.3, 0.2)
    assert (Sigmoid().tau_neg, Sigmoid().tau_pos) == (1.05, 1.0)
    assert (Clip().eps_low, Clip().eps_high) == (0.2, 0.2)
