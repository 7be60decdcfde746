"""The language of objectives: averages, advantages of tokens, factors, inputs, and Â = 0 far from ρ = 1."""

import dataclasses

import pytest
import torch

from megatron_sspo.objective import (
    AtanLog,
    Clip,
    Identity,
    OverLength,
    OverSequences,
    OverTokens,
    Penalties,
    Segments,
    SequenceObjective,
    Sigmoid,
    TokenInputs,
    arithmetic,
    dapo,
    geometric,
    grpo,
    gspo,
    product,
    sapo,
    sspo,
)
from tests.objective.test_objectives import batch, loss_and_gradient

OBJECTIVES = {
    "grpo": grpo(),
    "gspo": gspo(0.2, 0.2),
    "sapo": sapo(),
    "sspo": sspo(),
    "product": SequenceObjective(Clip(), product),
    "two gates": SequenceObjective(AtanLog(), arithmetic, Sigmoid()),
}
AVERAGES = {"sequences": OverSequences(), "tokens": OverTokens(), "length": OverLength(1000.0)}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())
every_average = pytest.mark.parametrize("average", AVERAGES.values(), ids=AVERAGES.keys())


@dataclasses.dataclass(frozen=True)
class Ones:
    """The factor 1, which asks for an entropy."""

    value: float = 1.0

    @property
    def needs(self):
        return ("entropy",)

    def __call__(self, inputs: TokenInputs):
        return torch.full_like(inputs.log_probs, self.value) + 0 * inputs.others["entropy"]


def with_fields(objective, **fields):
    return dataclasses.replace(objective, **fields)


def test_shares_and_divisors():
    segments = Segments.from_lengths([3, 0, 5])
    found = {name: (average.share(segments).tolist(), average.divisor(3, 8)) for name, average in AVERAGES.items()}
    assert found == {"sequences": ([1, 1, 1], 3), "tokens": ([3, 0, 5], 8), "length": ([3, 0, 5], 3000)}
    assert OverTokens().divisor(2, 0) == 1.0, "a batch without tokens has a sum of 0"
    with pytest.raises(ValueError, match=r"OverLength\.length is 0, and must be a finite number above 0"):
        OverLength(0)


@every_objective
@every_average
def test_advantages_of_tokens_that_are_equal_are_advantages_of_the_sequence(objective, average):
    log_probs, old, advantages, segments = batch(spread=0.5)
    advantages[4] = 0.0
    objective = with_fields(objective, average=average)
    found = loss_and_gradient(objective, log_probs, old, advantages[segments.ids], segments)
    expected = loss_and_gradient(objective, log_probs, old, advantages, segments)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    by_token, by_sequence = (objective(log_probs, old, a, segments) for a in (advantages[segments.ids], advantages))
    torch.testing.assert_close(by_token.tokens, by_sequence.tokens, rtol=1e-12, atol=0)
    torch.testing.assert_close(by_token.sequences, by_sequence.sequences, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_advantages_of_tokens_are_those_of_ppo_and_of_gspo_token(name):
    """(1/|y|) Σ_t min(s_t Â_t, clip(s_t) Â_t), in GRPO with s_t = ρ_t, and in GSPO-token with sg(s) π / sg(π)."""
    log_probs, old, _, segments = batch(spread=0.5)
    advantages = torch.randn(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    s = (log_probs - old).exp()
    if name == "gspo":  # arXiv 2507.18071
        s = segments.mean(log_probs - old).exp().detach()[segments.ids] * (log_probs - log_probs.detach()).exp()
    expected = -segments.mean(torch.minimum(s * advantages, s.clamp(0.8, 1.2) * advantages)).sum()
    loss, gradient = loss_and_gradient(OBJECTIVES[name], log_probs, old, advantages, segments)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, log_probs)[0], rtol=1e-11, atol=1e-14)


@every_objective
def test_a_factor_of_1_changes_nothing_and_another_scales(objective):
    log_probs, *rest = batch(spread=0.5)
    entropy = torch.ones_like(log_probs)
    plain = loss_and_gradient(objective, log_probs, *rest)
    for value in (1.0, 0.25):
        scaled = with_fields(objective, factor=Ones(value))
        assert scaled.needs == ("entropy",)
        loss = scaled(log_probs, *rest, entropy=entropy).loss
        found = (loss.detach(), torch.autograd.grad(loss, log_probs)[0])
        torch.testing.assert_close(found, tuple(value * part for part in plain), rtol=1e-11, atol=1e-13)


def test_what_an_objective_asks_for_is_checked():
    arguments = batch()
    objective = with_fields(sspo(), factor=Ones())
    with pytest.raises(ValueError, match="Ones needs entropy, which the objective was not given"):
        objective(*arguments)
    with pytest.raises(ValueError, match=r"entropy has shape \[2\]"):
        objective(*arguments, entropy=torch.ones(2))
    with pytest.raises(ValueError, match="average is 'tokens', and must be an average"):
        with_fields(sspo(), average="tokens")
    for wrong, message in ((Ones, "the class Ones"), (grpo(), "SequenceObjective"), ("erc", "'erc'")):
        with pytest.raises(ValueError, match=f"factor is {message}.*, and must be a factor"):
            with_fields(sspo(), factor=wrong)


def test_penalties_are_averaged_as_the_objective_is():
    log_probs, old, _, segments = batch()
    penalty = Penalties(kl_coef=0.5, kl_estimator="k2", entropy_coef=0.1)
    of_tokens = 0.25 * (log_probs - old).square() - 0.1
    found = penalty(log_probs, torch.ones_like(old), old, segments, OverTokens())
    assert found.item() == pytest.approx(of_tokens.sum().item(), rel=1e-12)
    assert penalty(log_probs, torch.ones_like(old), old, segments) == segments.mean(of_tokens).sum()


def test_with_one_more_empty_sequence_advantages_of_tokens_are_told_apart():
    segments = Segments.from_lengths([0, 2])
    advantages = torch.tensor([1.0, -1.0])
    assert not segments.are_per_token("advantages", advantages)
    assert segments.with_empty().are_per_token("advantages", advantages)
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = SequenceObjective(Identity(), geometric)(log_probs, log_probs.detach(), advantages, segments.with_empty())
    assert torch.autograd.grad(loss.loss, log_probs)[0].tolist() == [-0.5, 0.5]


@every_objective
@every_average
def test_no_advantage_is_no_gradient_however_far_the_ratio_is(objective, average):
    """e^{log ρ} overflows float32 above 88.7, and 0 · inf would be NaN."""
    old = torch.zeros(7)
    log_ratio = torch.tensor([100.0, -200.0, 3e4, 0.1, -0.2, 0.3, 200.0])
    segments = Segments.from_lengths([3, 3, 1])
    for advantages in (torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])):
        log_probs = (old + log_ratio).requires_grad_()
        loss, gradient = loss_and_gradient(
            with_fields(objective, average=average), log_probs, old, advantages, segments
        )
        assert loss.isfinite() and loss < 0
        weights = with_fields(objective, average=average)(log_probs, old, advantages, segments).sequences
        assert weights["sequence_weight"].isfinite().all(), "its mean is a metric"
        assert gradient[[0, 1, 2, 6]].tolist() == [0.0] * 4 and gradient[3:6].isfinite().all()


def test_an_infinite_factor_is_nothing_where_there_is_no_advantage():
    log_probs = torch.zeros(2, requires_grad=True)
    objective = with_fields(sspo(), factor=Ones(float("inf")))
    loss = objective(log_probs, log_probs.detach(), torch.zeros(1), Segments.from_lengths([2]), entropy=torch.ones(2))
    assert loss.loss == 0 and torch.autograd.grad(loss.loss, log_probs)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("objective", [grpo(), dapo(), sapo(), sspo()])
@pytest.mark.parametrize("far", [100.0, 300.0, -300.0])
def test_a_far_token_without_advantage_leaves_the_others_their_gradients(objective, far):
    """A mask takes such a token out. Its weight overflows float32, and the shares of the others underflow."""
    found = []
    for dtype in (torch.float32, torch.float64):
        log_probs = torch.tensor([far, 0.125, -0.125], dtype=dtype, requires_grad=True)
        arguments = (torch.zeros(3, dtype=dtype), torch.tensor([0.0, -1.0, -2.0]), Segments.from_lengths([3]))
        found.append(loss_and_gradient(objective, log_probs, *arguments))
    torch.testing.assert_close(found[0], tuple(values.float() for values in found[1]), rtol=1e-4, atol=0)
    assert found[0][1][1:].all()
