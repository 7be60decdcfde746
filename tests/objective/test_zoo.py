"""Objectives of other papers: each against its formula, written naively in float64, and laws that hold for all."""

import math

import pytest
import torch

from megatron_sspo.objective import (
    Correction,
    Decayed,
    Flipped,
    Identity,
    Preserving,
    Score,
    Segments,
    SequenceObjective,
    Smoothed,
    Truncated,
    TrustRegion,
    aspo,
    ce_gppo,
    cispo,
    cppo,
    dapo,
    dgpo,
    dppo_kl,
    dppo_tv,
    dr_grpo,
    drpo,
    dual_clip,
    erc,
    geometric,
    gmpo,
    gmpo_wide,
    icepop,
    ipo,
    kpop,
    luspo,
    maspo,
    minpro,
    opsm,
    pspo,
    rloo,
    scopic,
    spo,
    topr,
    vespo,
    vespo_documented,
)
from tests.objective.test_objectives import LENGTHS, batch

SEGMENTS = Segments.from_lengths(LENGTHS)


def sg(values):
    return values.detach()


def clip_term(ratio, advantage, low=0.2, high=0.2):
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def of_sequences(terms):
    """Returns Σ_i (1/|y_i|) Σ_t of terms [T]."""
    return SEGMENTS.mean(terms).sum()


def binary(q, p):
    return q * torch.log(q / p) + (1 - q) * torch.log((1 - q) / (1 - p))


def ce_gppo_terms(n):
    outside = torch.where(n.a > 0, n.ratio > 1.2, n.ratio < 0.8)
    bound = torch.where(n.a > 0, torch.full_like(n.a, 1.0 * 1.2), 0.75 * 0.8)
    return torch.where(outside, bound * n.ratio / sg(n.ratio), n.ratio) * n.a


def aspo_terms(n):
    up, down = n.ratio.clamp(max=1.2), n.ratio.clamp(min=0.8)
    positive = torch.where(1 / up > 3, 3.0 * n.log_probs, up / sg(up) / sg(up))
    negative = torch.where(down > 3, 3.0 * n.log_probs, down)
    return torch.where(n.a > 0, positive, negative) * n.a


def dppo_terms(n, distance, delta):
    along = torch.where(n.a > 0, n.ratio > 1, n.ratio < 1)
    kept = ~(along & (distance > delta))
    return kept * sg(n.ratio.clamp(max=20.0)) * n.a * n.log_probs


def opsm_terms(n):
    far = SEGMENTS.mean(sg(n.old - n.log_probs)) > 0.02
    kept = ~((n.a < 0) & far[SEGMENTS.ids])
    return kept * clip_term(n.ratio, n.a)


def vespo_terms(n, k_pos, rate_pos, k_neg, rate_neg):
    product = SEGMENTS.sum(sg(n.log_probs - n.old)).exp()[SEGMENTS.ids]
    positive = product**k_pos * torch.exp(rate_pos * (1 - product))
    negative = product**k_neg * torch.exp(rate_neg * (1 - product))
    return torch.where(n.a > 0, positive, negative) * n.a * n.log_probs


def products(n):
    weight = torch.stack([part.prod() for part in n.ratio.split(LENGTHS)])
    return clip_term(weight, n.of_sequence).sum()


def geometric_clipped(n):
    """GMPO in log space, as its authors print it: e^{mean of the signed minimum of log ρ and its clip}."""
    log_ratio, sign = n.log_probs - n.old, torch.sign(n.a)
    least = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-0.4, 0.4))
    return (SEGMENTS.mean(least).exp() * n.of_sequence).sum()


def lengths_times_gspo(n):
    s = SEGMENTS.mean(n.log_probs - n.old).exp()
    return (SEGMENTS.lengths * clip_term(s, n.of_sequence, 0.05, 0.05)).sum()


def quadratic(n, eps, scale):
    return n.ratio * n.a - n.a.abs() * scale * (n.ratio - 1).square() / (2 * eps)


def dgpo_terms(n):
    below, above = (n.a < 0) & (n.ratio < 0.8), (n.a > 0) & (n.ratio > 1.2)
    decayed = torch.where(below, (sg(n.ratio) / 0.8) ** 2, (1.2 / sg(n.ratio)) ** 0.25)
    return torch.where(below | above, n.ratio * decayed, n.ratio) * n.a


def maspo_terms(n):
    along = torch.where(n.a > 0, n.ratio > 1, n.ratio < 1)
    scale = torch.where(n.a > 0, (1 + 0.5 * n.a).clamp(0.1, 10), (1 / (1 - 0.7 * n.a)).clamp(0.1, 10))
    sigma = (0.4 / n.q**0.3).clamp(0.4, 10) * scale
    return torch.where(along, torch.exp(-((sg(n.ratio) - 1) ** 2) / 2 / sigma**2), 1.0) * n.ratio * n.a


def topr_terms(n):
    product = torch.stack([part.prod() for part in sg(n.ratio).split(LENGTHS)])[SEGMENTS.ids]
    return torch.where(n.a > 0, 1.0, product.clamp(0, 1)) * n.a * n.log_probs


def minpro_terms(n):
    parts = sg(n.ratio).split(LENGTHS)
    least = torch.stack([part[:t].min() if t else torch.ones_like(part[0]) for part in parts for t in range(len(part))])
    return (least * sg(n.ratio)).clamp(0.6, 1.3) * n.a * n.log_probs


def cppo_kept(n, delta, prefix, floor):
    """The algorithm of the paper, one token after the other."""
    kept = []
    for distances, ratios, advantages in zip(
        (n.p - n.q).abs().split(LENGTHS), n.ratio.split(LENGTHS), n.a.split(LENGTHS), strict=True
    ):
        spent = weights = 0.0
        for t, (distance, ratio, advantage) in enumerate(zip(distances, ratios, advantages, strict=True)):
            weight = 1 - (1 - floor) / max(len(distances) - 1, 1) * t
            bound = min(delta, delta + prefix * weights - spent)
            kept.append(bool(advantage * (ratio - 1) <= 0 or weight * distance <= bound))
            spent, weights = spent + weight * distance, weights + weight
    return torch.tensor(kept)


# name -> the objective, J · N of the paper, and whether the value is the paper's too
ROWS = {
    "dapo": (dapo(), lambda n: clip_term(n.ratio, n.a, 0.2, 0.28).sum(), True),
    "dr_grpo": (dr_grpo(64), lambda n: clip_term(n.ratio, n.a).sum(), True),
    "dual_clip": (
        dual_clip(cap=1.5),
        lambda n: torch.where(
            n.a < 0, torch.maximum(clip_term(n.ratio, n.a), 1.5 * n.a), clip_term(n.ratio, n.a)
        ).sum(),
        True,
    ),
    "gmpo_wide": (gmpo_wide(), geometric_clipped, True),
    "luspo": (luspo(0.05, 0.05), lengths_times_gspo, True),
    "rloo": (rloo(), products, True),
    "scopic": (scopic(), lambda n: (torch.sigmoid(4 * (n.ratio - 1)) * n.a).sum(), True),
    "pspo": (pspo(), lambda n: of_sequences((0.9 * n.ratio + 0.1) * n.a), True),
    "ce_gppo": (ce_gppo(), lambda n: ce_gppo_terms(n).sum(), False),
    "erc": (
        erc(),
        lambda n: (((n.h >= 0.95 * n.h_old) & (n.h <= 1.05 * n.h_old)) * clip_term(n.ratio, n.a, 0.2, 0.28)).sum(),
        True,
    ),
    "cispo": (cispo(1.3, 0.7), lambda n: (sg(n.ratio.clamp(0.7, 1.3)) * n.a * n.log_probs).sum(), False),
    "aspo": (aspo(), lambda n: aspo_terms(n).sum(), False),
    "spo": (spo(), lambda n: quadratic(n, 0.2, 1.0).sum(), False),
    "drpo": (drpo(0.1), lambda n: quadratic(n, 0.1, n.old.exp()).sum(), False),
    "dppo_tv": (dppo_tv(), lambda n: dppo_terms(n, (n.p - n.q).abs(), 0.15).sum(), False),
    "dppo_kl": (dppo_kl(), lambda n: dppo_terms(n, binary(n.q, n.p), 0.05).sum(), False),
    "opsm": (opsm(delta=0.02), lambda n: of_sequences(opsm_terms(n)), True),
    "topr": (topr(), lambda n: of_sequences(topr_terms(n)), False),
    "minpro": (minpro(1.3, 0.6), lambda n: minpro_terms(n).sum(), False),
    "dgpo": (dgpo(n=2.0, m=4.0), lambda n: dgpo_terms(n).sum(), True),
    "maspo": (maspo(0.4, 0.3, 0.5, 0.7), lambda n: maspo_terms(n).sum(), True),
    "ipo": (ipo(0.1), lambda n: (((n.p - n.q).abs() <= 0.1) * n.ratio * n.a).sum(), True),
    "cppo": (cppo(0.1, 0.03, 0.3), lambda n: (cppo_kept(n, 0.1, 0.03, 0.3) * n.ratio * n.a).sum(), True),
    "vespo": (vespo(), lambda n: vespo_terms(n, 2, 3, 3, 2).sum(), False),
    "vespo_documented": (vespo_documented(), lambda n: vespo_terms(n, 2, 1.5, 4, 2.5).sum(), False),
}
every_row = pytest.mark.parametrize("name", ROWS)


class Numbers:
    """A batch with everything that a formula may name; probabilities stay below 1."""

    def __init__(self, spread=0.5, seed=0):
        self.log_probs, self.old, self.of_sequence, _ = batch(spread=spread, seed=seed)
        self.log_probs = self.log_probs.detach().clamp(max=-0.01).requires_grad_()
        self.old = self.old.clamp(max=-0.01)
        self.a = self.of_sequence[SEGMENTS.ids]
        self.ratio = (self.log_probs - self.old).exp()
        self.p, self.q = sg(self.log_probs.exp()), self.old.exp()
        generator = torch.Generator().manual_seed(5)
        self.h_old = torch.rand(len(self.old), generator=generator, dtype=torch.float64)
        self.h = self.h_old * (1 + 0.1 * torch.randn(len(self.old), generator=generator, dtype=torch.float64))

    def call(self, objective):
        available = {"entropy": self.h, "old_entropy": self.h_old, "rollout_log_probs": self.old}
        inputs = {name: available[name] for name in objective.needs}
        return objective(self.log_probs, self.old, self.of_sequence, SEGMENTS, **inputs)


@every_row
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_is_that_of_the_paper(name, seed):
    objective, formula, has_value = ROWS[name]
    numbers = Numbers(seed=seed)
    loss = numbers.call(objective).loss
    (gradient,) = torch.autograd.grad(loss, numbers.log_probs)
    value = formula(numbers)
    (expected,) = torch.autograd.grad(-value, numbers.log_probs)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-13)
    assert gradient.any(), "the batch must exercise the objective"
    if has_value:
        assert loss.item() == pytest.approx(-value.item(), rel=1e-11)


@every_row
def test_on_policy_the_gradient_is_that_of_reinforce(name):
    """Â_it a_i / |y_i|; of RLOO Â_i for each token; of PSPO 1 − α of it."""
    objective, _, _ = ROWS[name]
    numbers = Numbers()
    numbers.old, numbers.h = sg(numbers.log_probs), numbers.h_old
    (gradient,) = torch.autograd.grad(numbers.call(objective).loss, numbers.log_probs)
    share = objective.average.share(SEGMENTS).double() / SEGMENTS.lengths
    expected = numbers.a * (1.0 if name == "rloo" else share[SEGMENTS.ids]) * (0.9 if name == "pspo" else 1.0)
    torch.testing.assert_close(gradient, -expected, rtol=1e-12, atol=0)


@every_row
@pytest.mark.parametrize("log_ratio", [100.0, -200.0])
def test_no_advantage_is_no_gradient_in_float32_however_far_the_ratio_is(name, log_ratio):
    objective, _, _ = ROWS[name]
    old = torch.tensor([-1.0 - max(log_ratio, 0.0), -1.0, -1.0, -1.0])
    log_probs = torch.tensor([-1.0 + min(log_ratio, 0.0), -1.0, -1.1, -0.9], requires_grad=True)
    values = {"entropy": torch.ones(4), "old_entropy": torch.ones(4), "rollout_log_probs": old}
    inputs = {key: values[key] for key in objective.needs}
    segments = Segments.from_lengths([2, 2])
    for given in (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])):
        loss = objective(log_probs, old, given, segments, **inputs).loss
        (gradient,) = torch.autograd.grad(loss, log_probs)
        assert loss.isfinite() and gradient[:2].tolist() == [0.0, 0.0]
        assert gradient[2:].isfinite().all() and gradient[2:].all()


# --- gates


@pytest.mark.parametrize("gate", [Truncated(), Score(), Preserving(), Flipped(), Decayed(m=1.0)], ids=str)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_gradient_of_a_gate_is_bounded_and_1_at_1(gate, advantage):
    log_ratio, advantage = torch.tensor([-30.0, -1.0, 0.0, 1.0, 30.0]), torch.tensor(advantage)
    gradient = gate.log_gate(log_ratio, advantage).exp() * gate.weight(log_ratio, advantage)
    assert gradient[2] == 1.0
    assert gradient[log_ratio * advantage >= 0].max() <= 5.0


def test_beta_0_is_the_clip_and_beta_1_is_gppo():
    log_ratio, advantage = torch.tensor([-1.0, -1.0, 1.0, 1.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert Preserving(beta_low=0.0, beta_high=0.0).weight(log_ratio, advantage).tolist() == [1, 0, 0, 1]
    assert Preserving(beta_low=0.5, beta_high=1.0).weight(log_ratio, advantage).tolist() == [1, 0.5, 1, 1]


def test_bounds_of_gmpo_by_both_papers():
    gate, wide = gmpo().token_gate, gmpo_wide().token_gate
    for positive, narrow, bound in ((1.0, math.log(1.2), 0.4), (-1.0, math.log(0.8), -0.4)):
        far = torch.tensor(5.0 * positive, dtype=torch.float64)
        assert gate.log_gate(far, torch.tensor(positive)).item() == pytest.approx(narrow)
        assert wide.log_gate(far, torch.tensor(positive)).item() == pytest.approx(bound)
    for bound in (1000, -0.1, math.nan, "x"):
        with pytest.raises(ValueError, match="the bound of gmpo_wide is"):
            gmpo_wide(bound)


# --- factors


def test_a_trust_region_around_the_engine():
    objective = dppo_tv(anchor="rollout")
    assert objective.needs == ("rollout_log_probs",) and dppo_tv().needs == ()
    log_probs = torch.tensor([0.5, 0.9, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
    engine = torch.tensor([0.6, 0.6, 0.6, 0.6], dtype=torch.float64).log()
    sums = objective(
        log_probs,
        log_probs.detach(),
        torch.tensor([1.0, -1.0]),
        Segments.from_lengths([2, 2]),
        rollout_log_probs=engine,
    )
    assert sums.tokens["token_weight"].tolist() == [1.0, 0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"TrustRegion\.divergence is 'js', and must be one of tv, kl"):
        TrustRegion(divergence="js")


def test_the_budget_of_a_prefix_masks_tokens_that_a_threshold_keeps():
    """Both bounds of CPPO act in the batch."""
    numbers = Numbers()
    budgeted, threshold = (cppo_kept(numbers, 0.1, prefix, 0.8) for prefix in (0.03, 1e9))
    assert (threshold & ~budgeted).any() and (~threshold).any()
    weight = numbers.call(cppo(0.1, 0.03)).tokens["token_weight"]
    assert (weight == 1).tolist() == budgeted.tolist()


@pytest.mark.parametrize("objective", [minpro(), cppo(0.1, 0.03)], ids=["minpro", "cppo"])
def test_a_prefix_is_that_of_its_own_sequence_to_the_last_bit(objective):
    numbers = Numbers()
    weight = numbers.call(objective).tokens["token_weight"].split(LENGTHS)
    parts = zip(numbers.log_probs.split(LENGTHS), numbers.old.split(LENGTHS), numbers.of_sequence, weight, strict=True)
    for log_probs, old, advantage, expected in parts:
        alone = objective(log_probs, old, advantage[None], Segments.from_lengths([len(old)]))
        assert alone.tokens["token_weight"].tolist() == expected.tolist()


# --- corrections


def correction_batch():
    rollout = torch.tensor([0.5, 0.5, 0.9, 0.01, 0.3], dtype=torch.float64)
    old = torch.tensor([0.55, 0.9, 0.5, 0.001, 0.3], dtype=torch.float64)
    return old.log(), rollout.log(), Segments.from_lengths([3, 2])


def test_kpop_keeps_tokens_whose_binary_kl_is_small_both_ways():
    old, rollout, segments = correction_batch()
    p, q = old.exp(), rollout.exp()
    kept = (binary(p, q) <= 0.1) & (binary(q, p) <= 0.1)
    assert kept.tolist() == [True, False, False, True, True]
    assert kpop().weights(old, rollout, segments).tolist() == pytest.approx((kept * p / q).tolist())
    with pytest.raises(ValueError, match=r"Correction\.level is 'sequence', and must be 'token'"):
        Correction("binary_kl", "sequence")


def test_icepop_and_products():
    old, rollout, segments = correction_batch()
    ratio = (old - rollout).exp()
    assert icepop().weights(old, rollout, segments).tolist() == pytest.approx([1.1, 1.8, 5 / 9, 0.0, 1.0])
    products = [math.prod(part.tolist()) for part in ratio.split([3, 2])]
    found = Correction("truncated", "product", cap=1.05).weights(old, rollout, segments)
    assert found.tolist() == pytest.approx([1.05] * 3 + [products[1]] * 2)


@pytest.mark.parametrize("of_tokens", [False, True])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_weight", [-1.0, 0.0, 0.4, 2.0])
@pytest.mark.parametrize("gate", [Truncated(), Score(), Smoothed(), Preserving(), Flipped(), Decayed()])
def test_a_gate_of_a_sequence_has_the_gradient_that_it_names(gate, log_weight, advantage, of_tokens):
    segments = Segments.from_lengths([2])
    log_probs = torch.full((2,), log_weight, dtype=torch.float64, requires_grad=True)
    given = torch.full((2 if of_tokens else 1,), advantage, dtype=torch.float64)
    objective = SequenceObjective(Identity(), geometric, gate)
    objective(log_probs, torch.zeros(2, dtype=torch.float64), given, segments).loss.backward()
    value, one = torch.tensor([log_weight], dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    expected = -(gate.log_gate(value, one).exp() * gate.weight(value, one) * one / 2).item()
    assert log_probs.grad is not None and log_probs.grad.tolist() == pytest.approx([expected] * 2)
