"""Objectives: vectors, the paper's formulas written naively, limits, and invariances."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from megatron_sspo import objective
from megatron_sspo.objective import (
    AtanLog,
    Clip,
    ExpAtan,
    ExpSig,
    Gumbel,
    Identity,
    Segments,
    SequenceObjective,
    SigLog,
    Sigmoid,
    Supervised,
    arithmetic,
    geometric,
    gmpo,
    grpo,
    gspo,
    sapo,
    sspo,
)
from tests.objective.reference_vectors import check_vector

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "objectives.json").read_text())
BUILD = {
    "grpo": grpo,
    "gspo": gspo,
    "gmpo": gmpo,
    "sapo": sapo,
    "sspo-expsig": lambda **params: sspo(ExpSig(**params)),
    "sspo-expatan": lambda **params: sspo(ExpAtan(**params)),
    "sspo-gumbel": lambda **params: sspo(Gumbel(**params)),
    "sspo-atanlog": lambda **params: sspo(AtanLog(**params)),
    "sspo-siglog": lambda **params: sspo(SigLog(**params)),
}
OBJECTIVES = {
    "grpo": grpo(),
    "grpo-clip-higher": grpo(0.2, 0.28),
    "gspo": gspo(),
    "gspo-wide": gspo(0.2, 0.2),
    "gmpo": gmpo(),
    "sapo": sapo(),
    "sspo": sspo(),
    "sspo-siglog": sspo(SigLog()),
    "sspo-expsig": sspo(ExpSig()),
    "sspo-expatan": sspo(ExpAtan()),
    "sspo-gumbel": sspo(Gumbel()),
    "two gates": SequenceObjective(AtanLog(), geometric, Clip(0.05, 0.05)),
}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])

LENGTHS = [3, 1, 7, 12, 2, 5]


def batch(lengths=LENGTHS, spread=0.3, seed=0, dtype=torch.float64):
    """Returns log-probs, old log-probs, advantages of both signs, and segments."""
    generator = torch.Generator().manual_seed(seed)
    tokens, sequences = sum(lengths), len(lengths)
    old = -torch.rand(tokens, generator=generator, dtype=torch.float64) * 3
    log_probs = old + spread * torch.randn(tokens, generator=generator, dtype=torch.float64)
    advantages = torch.randn(sequences, generator=generator, dtype=torch.float64)
    advantages[:2] = torch.tensor([1.1, -0.9])[:sequences]
    return log_probs.to(dtype).requires_grad_(), old.to(dtype), advantages.to(dtype), Segments.from_lengths(lengths)


@dataclasses.dataclass
class Average:
    """An average of one's own."""

    share: Callable

    def divisor(self, num_sequences, num_tokens):
        return float(num_sequences)


def loss_and_gradient(objective, log_probs, *rest):
    loss = objective(log_probs, *rest).loss
    return loss.detach(), torch.autograd.grad(loss, log_probs)[0]


# --- references


@every_dtype
@pytest.mark.parametrize("case", VECTORS, ids=[f"{i}-{case['objective']}" for i, case in enumerate(VECTORS)])
def test_vectors(case, dtype):
    check_vector(case, BUILD[case["objective"]](**case["params"]), dtype)


def naive(objective, log_probs, old_log_probs, advantages, segments):
    """Computes J · S in ρ, one sequence at a time, with the products and sums as printed in the paper."""
    total = log_probs.new_zeros(())
    for new, old, advantage in zip(
        log_probs.split(segments.lengths.tolist()),
        old_log_probs.split(segments.lengths.tolist()),
        advantages,
        strict=True,
    ):
        gates = objective.token_gate.log_gate((new - old), advantage).exp()
        weight = gates.mean() if objective.pool is arithmetic else gates.prod() ** (1 / len(new))
        total = total + objective.sequence_gate.log_gate(weight.log(), advantage).exp() * advantage
    return total


@every_objective
@pytest.mark.parametrize("spread", [1e-4, 0.1, 1.0])
def test_pooling_is_the_formula_of_the_paper(objective, spread):
    log_probs, *rest = batch(spread=spread)
    loss, gradient = loss_and_gradient(objective, log_probs, *rest)
    expected = -naive(objective, log_probs, *rest)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-11)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, log_probs)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("eps_low, eps_high", [(0.2, 0.2), (0.2, 0.28)])
def test_grpo_is_the_min_of_ppo(eps_low, eps_high):
    log_probs, old, advantages, segments = batch(spread=0.5)
    loss, gradient = loss_and_gradient(grpo(eps_low, eps_high), log_probs, old, advantages, segments)
    ratio, of_token = (log_probs - old).exp(), advantages[segments.ids]
    surrogate = torch.minimum(ratio * of_token, ratio.clamp(1 - eps_low, 1 + eps_high) * of_token)
    expected = -segments.mean(surrogate).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, log_probs)[0], rtol=1e-11, atol=1e-14)


@every_objective
def test_gradcheck(objective):
    log_probs, *rest = batch(lengths=[2, 0, 3])
    assert torch.autograd.gradcheck(lambda values: objective(values, *rest).loss, (log_probs,))


def test_geometric_gradient_is_the_weighted_policy_gradient():
    """∇J = Σ_i w_i Â_i (1/|y_i|) Σ_t w(ρ_it; Â_i) ∇ log π: the reported weights are those of the gradient."""
    for name in ("gspo", "gspo-wide", "gmpo", "sspo", "sspo-expsig", "two gates"):
        log_probs, old, advantages, segments = batch()
        sums = OBJECTIVES[name](log_probs, old, advantages, segments)
        (gradient,) = torch.autograd.grad(sums.loss, log_probs)
        of_sequence = sums.sequences["sequence_weight"] * advantages / segments.lengths
        torch.testing.assert_close(
            gradient, -of_sequence[segments.ids] * sums.tokens["token_weight"], rtol=1e-10, atol=1e-14
        )


# --- limits


@every_dtype
@every_objective
def test_on_policy_every_objective_is_reinforce(objective, dtype):
    """The gradient at ρ = 1 is Â_i / |y_i|. SAPO's f(1) = 2/τ is not 1, but f'(1) is."""
    log_probs, _, advantages, segments = batch(dtype=dtype)
    _, gradient = loss_and_gradient(objective, log_probs, log_probs.detach(), advantages, segments)
    expected = -(advantages / segments.lengths)[segments.ids]
    torch.testing.assert_close(gradient, expected, rtol=8 * torch.finfo(dtype).eps, atol=0)


@every_dtype
@every_objective
@pytest.mark.parametrize("log_ratio", [-50.0, 50.0, "mixed"])
def test_finite_far_away(objective, dtype, log_ratio):
    _, old, advantages, segments = batch(lengths=[4, 0, 6, 1, 3], dtype=dtype)
    if log_ratio == "mixed":
        log_ratio = torch.tensor([-50.0, 50.0], dtype=dtype).repeat(7)
    log_probs = (old + log_ratio).requires_grad_()
    sums = objective(log_probs, old, advantages, segments)
    (gradient,) = torch.autograd.grad(sums.loss, log_probs)
    for values in (sums.loss, gradient, *sums.tokens.values(), *sums.sequences.values()):
        assert values.isfinite().all()


def test_arithmetic_and_geometric_agree_on_one_token():
    arguments = batch(lengths=[1, 1, 1, 1])
    for gate in (Clip(), Sigmoid(), AtanLog(), Identity()):
        first = loss_and_gradient(SequenceObjective(gate, arithmetic), *arguments)
        second = loss_and_gradient(SequenceObjective(gate, geometric), *arguments)
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-14)


@every_dtype
@pytest.mark.parametrize("pool", [arithmetic, geometric])
@pytest.mark.parametrize("log_gate", [-400.0, 400.0])
def test_pooling_of_equal_gates_is_that_gate_however_small_or_large(pool, log_gate, dtype):
    """e^{±400} is 0 or inf in fp32; a sequence must not move another one out of range either."""
    log_gates = torch.tensor([log_gate] * 3 + [0.5] * 2, dtype=dtype, requires_grad=True)
    pooled = pool(log_gates, Segments.from_lengths([3, 2]))
    assert pooled.tolist() == pytest.approx([log_gate, 0.5], rel=1e-6)
    (gradient,) = torch.autograd.grad(pooled.sum(), log_gates)
    assert gradient.tolist() == pytest.approx([1 / 3] * 3 + [1 / 2] * 2, rel=1e-6)


# --- invariances


@every_dtype
@every_objective
@pytest.mark.parametrize("sizes", [[6], [1] * 6, [2, 4], [5, 0, 1]])
def test_microbatches_add_up(objective, dtype, sizes):
    log_probs, old, advantages, segments = batch(dtype=dtype)
    loss, gradient = loss_and_gradient(objective, log_probs, old, advantages, segments)
    total = 0.0
    log_probs.grad = None
    token = sequence = 0
    for size in sizes:
        lengths = LENGTHS[sequence : sequence + size]
        tokens = slice(token, token + sum(lengths))
        part = objective(
            log_probs[tokens], old[tokens], advantages[sequence : sequence + size], Segments.from_lengths(lengths)
        ).loss
        part.backward()
        total += part.item()
        token, sequence = tokens.stop, sequence + size
    tolerance = 100 * torch.finfo(dtype).eps
    assert total == pytest.approx(loss.item(), rel=tolerance)
    torch.testing.assert_close(log_probs.grad, gradient, rtol=tolerance, atol=0)


@every_objective
def test_empty_sequences_and_zero_advantages_have_no_gradient(objective):
    log_probs, old, advantages, _ = batch()
    padded = Segments.from_lengths([0, *LENGTHS, 0])
    zero = torch.zeros(1, dtype=torch.float64)
    segments = Segments.from_lengths(LENGTHS)
    loss, gradient = loss_and_gradient(objective, log_probs, old, advantages, segments)
    padded_loss, padded_gradient = loss_and_gradient(
        objective, log_probs, old, torch.cat([zero, advantages, zero]), padded
    )
    assert padded_loss.item() == pytest.approx(loss.item(), rel=1e-14)
    assert padded_gradient.equal(gradient)

    weights = objective(log_probs, old, torch.cat([zero + 2, advantages, zero - 2]), padded).sequences
    assert weights["sequence_weight"][[0, -1]].tolist() == [1.0, 1.0]

    _, gradient = loss_and_gradient(
        objective, log_probs, old, torch.zeros_like(advantages), Segments.from_lengths(LENGTHS)
    )
    assert not gradient.any()


@every_dtype
@every_objective
def test_a_microbatch_without_sequences_still_reaches_the_graph(objective, dtype):
    nothing = torch.zeros(0, dtype=dtype)
    loss, gradient = loss_and_gradient(
        objective, nothing.clone().requires_grad_(), nothing, nothing, Segments.from_lengths([])
    )
    assert loss.item() == 0.0
    assert gradient.shape == (0,)


# --- what is reported


def test_reports_are_detached_and_have_their_shapes():
    log_probs, old, advantages, segments = batch()
    sums = sspo()(log_probs, old, advantages, segments)
    assert sums.tokens.keys() == {"log_ratio", "token_weight"}
    assert sums.sequences.keys() == {"sequence_weight"}
    assert all(values.shape == (30,) and not values.requires_grad for values in sums.tokens.values())
    assert all(values.shape == (6,) and not values.requires_grad for values in sums.sequences.values())
    torch.testing.assert_close(sums.tokens["log_ratio"], (log_probs - old).detach())
    torch.testing.assert_close(
        sums.tokens["token_weight"], AtanLog().weight((log_probs - old).detach(), advantages[segments.ids])
    )
    assert sums.loss.item() == pytest.approx(-(sums.sequences["sequence_weight"] * advantages).sum().item())


def test_a_sequence_that_gspo_clips_shows_as_weight_0():
    segments = Segments.from_lengths([2, 2, 2])
    log_probs = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, -0.1])
    sums = gspo()(log_probs, torch.zeros(6), torch.tensor([1.0, -1.0, 1.0]), segments)
    assert sums.tokens["token_weight"].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


# --- supervised


def test_supervised_is_the_mean_log_likelihood_of_each_sequence():
    log_probs, old, advantages, segments = batch()
    for unread in ((old, advantages), (None, None)):
        sums = Supervised()(log_probs, *unread, segments)
        (gradient,) = torch.autograd.grad(sums.loss, log_probs)
        expected = [part.mean().item() for part in log_probs.split(LENGTHS)]
        assert sums.sequences["mean_log_prob"].tolist() == pytest.approx(expected)
        assert sums.loss.item() == pytest.approx(-sum(expected))
        torch.testing.assert_close(gradient, -(1.0 / segments.lengths.double())[segments.ids])


# --- refusals and values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("which", [0, 1])
def test_half_precision_is_refused(which, dtype):
    log_probs, old, advantages, segments = batch(dtype=torch.float32)
    inputs = [log_probs.detach(), old]
    inputs[which] = inputs[which].to(dtype)
    name = ("log_probs", "old_log_probs")[which]
    with pytest.raises(ValueError, match=f"^{name} is .*must be float32 or float64"):
        sspo()(*inputs, advantages, segments)


class ClampsInPlace(Identity):
    def log_gate(self, log_ratio, advantage):
        return log_ratio.clamp_(-0.2, 0.2)


class ScalesInPlace(Identity):
    def weight(self, log_ratio, advantage):
        return torch.ones_like(advantage.mul_(2))


@pytest.mark.parametrize("with_factor", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_gate": ClampsInPlace()}, "the gate ClampsInPlace changes log_ratio in place: use functions that"),
        ({"token_gate": ScalesInPlace()}, "the gate ScalesInPlace changes advantage in place"),
        ({"sequence_gate": ClampsInPlace()}, "the gate ClampsInPlace changes log_ratio in place"),
        (
            {"pool": lambda log_gate, segments: segments.mean(log_gate.clamp_(max=1))},
            "pool changes log_gate in place|modified inplace",
        ),
        ({"factor": lambda inputs: inputs.log_probs.mul_(2)}, "factor changes log_probs in place"),
        ({"factor": lambda inputs: inputs.advantages.zero_()}, "factor changes advantages in place"),
        ({"pool": lambda log_gate, segments: log_gate}, r"pool returned shape \[30\], and must return one log weight"),
        ({"average": Average(lambda s: torch.ones(len(s.lengths), 1))}, r"Average.share returned shape \[6, 1\], and"),
        (
            {"average": Average(lambda s: 1.0)},
            r"Average.share returned 1.0, and must return one number for each of the 6",
        ),
    ],
)
def test_parts_that_would_silently_give_another_gradient_are_refused(change, message, with_factor):
    factor = {"factor": lambda inputs: torch.ones_like(inputs.log_probs)} if with_factor else {}
    objective = dataclasses.replace(sspo(), **{**factor, **change})
    with pytest.raises((ValueError, RuntimeError), match=message):  # torch itself refuses a pool without a factor
        objective(*batch())


def test_in_inference_mode_an_objective_has_a_value():
    with torch.inference_mode():
        assert sspo()(*[values.clone() for values in batch()[:3]], batch()[3]).loss.isfinite()


# --- boundaries


def test_import_pulls_in_torch_alone():
    program = "import sys, megatron_sspo.objective; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in modules
    foreign = [
        name
        for name in modules
        if name.split(".")[0] in ("megatron", "transformers", "transformer_engine", "sglang", "nemo_run", "matplotlib")
        or (name.startswith("megatron_sspo.") and not name.startswith("megatron_sspo.objective"))
    ]
    assert foreign == []
    assert not [name for name in modules if name.startswith("megatron_sspo.objective.zoo")]
    assert all(hasattr(objective, name) for name in objective.__all__) and {*objective.__all__} <= {*dir(objective)}
    assert not hasattr(objective, "cispo2")
