"""Objectives of other papers, one row each. `docs/zoo.md` has the formulas, and the differences from the papers."""

import math

from megatron_sspo.objective.average import OverLength, OverTokens
from megatron_sspo.objective.checks import describe_value
from megatron_sspo.objective.correction import Correction
from megatron_sspo.objective.gates import Clip, Identity, Sigmoid
from megatron_sspo.objective.pessimistic import Pessimistic
from megatron_sspo.objective.pooling import arithmetic, geometric, product
from megatron_sspo.objective.sequence import SequenceObjective
from megatron_sspo.objective.zoo.factors import GammaKernel, GaussianDecay, LeastPrefix, QuadraticPenalty, Tapered
from megatron_sspo.objective.zoo.gates import Decayed, Flipped, Preserving, Score, Smoothed, Truncated
from megatron_sspo.objective.zoo.masks import Anchor, EntropyBand, OffPolicySequences, PrefixBudget, TrustRegion


def dapo(eps_low: float = 0.2, eps_high: float = 0.28) -> SequenceObjective:
    """GRPO with a higher upper bound, as a mean over all tokens of the batch: DAPO (arXiv 2503.14476)."""
    return SequenceObjective(Clip(eps_low, eps_high), arithmetic, average=OverTokens())


def dr_grpo(length: float, eps_low: float = 0.2, eps_high: float = 0.2) -> SequenceObjective:
    """Σ_t f_Clip Â_i / (S · L), with a constant length L: Dr. GRPO (arXiv 2503.20783).

    L is the generation budget in the authors' code; `advantage="group_centered"` belongs to it.
    """
    return SequenceObjective(Clip(eps_low, eps_high), arithmetic, average=OverLength(length))


def dual_clip(eps_low: float = 0.2, eps_high: float = 0.2, cap: float = 3.0) -> SequenceObjective:
    """max(min(ρ Â, clip(ρ) Â), cap · Â) where Â < 0, a mean over all tokens: dual-clip PPO (arXiv 1912.09729)."""
    return SequenceObjective(Pessimistic(Clip(eps_low, eps_high), cap), arithmetic, average=OverTokens())


def gmpo_wide(bound: float = 0.4) -> SequenceObjective:
    """GMPO with ratios clipped at e^{±bound}, as in its own paper (arXiv 2507.20673) and in TRL.

    `gmpo()` clips at 1 ± 0.2, as in the comparison of arXiv 2602.19327. Raises ValueError if the bound is not a number
    from 0 to 30.
    """
    if not (isinstance(bound, (int, float)) and 0 <= bound <= 30):
        raise ValueError(f"the bound of gmpo_wide is {describe_value(bound)}, and must be a number from 0 to 30")
    return SequenceObjective(Clip(-math.expm1(-bound), math.expm1(bound)), geometric)


def luspo(eps_low: float = 3e-4, eps_high: float = 4e-4) -> SequenceObjective:
    """(1/S) Σ_i |y_i| f_Clip(s_i; Â_i) Â_i: GSPO weighted by length, LUSPO (arXiv 2602.05261).

    The bounds are GSPO's; those of LUSPO's paper were not verified.
    """
    return SequenceObjective(Identity(), geometric, Clip(eps_low, eps_high), OverLength(1))


def rloo(eps_low: float = 0.2, eps_high: float = 0.2) -> SequenceObjective:
    """f_Clip(Π_t ρ_it; Â_i) Â_i, not normalized by length: RLOO (arXiv 2402.14740).

    On-policy the gradient is that of REINFORCE, Â_i Σ_t ∇ log π, which is the whole of the paper's method; the clip is
    TRL's. `advantage="leave_one_out"` belongs to it.
    """
    return SequenceObjective(Identity(), product, Clip(eps_low, eps_high))


def scopic(tau: float = 4.0) -> SequenceObjective:
    """(4/τ) σ(τ (ρ − 1)) Â, a mean over all tokens: the Scopic objective of P3O (arXiv 2205.10047).

    It is SAPO's gate with one temperature. P3O adds β KL(π_old ‖ π_θ), which is left out here. The default τ is that of
    a comment in the authors' code, and was not verified in the paper.
    """
    return SequenceObjective(Sigmoid(tau, tau), arithmetic, average=OverTokens())


def pspo(alpha: float = 0.1) -> SequenceObjective:
    """((1 − α) ρ + α) Â in the place of GRPO's clip: PSPO (arXiv 2509.21282)."""
    return SequenceObjective(Smoothed(alpha), arithmetic)


def ce_gppo(
    eps_low: float = 0.2, eps_high: float = 0.2, beta_low: float = 0.75, beta_high: float = 1.0
) -> SequenceObjective:
    """DAPO whose clipped tokens keep a gradient β (1 ∓ ε) Â ∇ log π: CE-GPPO (arXiv 2509.20712)."""
    return SequenceObjective(Preserving(eps_low, eps_high, beta_low, beta_high), arithmetic, average=OverTokens())


def erc(eps_low: float = 0.2, eps_high: float = 0.28, low: float = 0.05, high: float = 0.05) -> SequenceObjective:
    """DAPO on tokens whose entropy has stayed within a band: entropy ratio clipping (arXiv 2512.05591)."""
    return SequenceObjective(Clip(eps_low, eps_high), arithmetic, average=OverTokens(), factor=EntropyBand(low, high))


def cispo(cap: float = 5.0, floor: float = 0.0) -> SequenceObjective:
    """sg(clip(ρ, floor, cap)) Â log π, a mean over all tokens: CISPO (arXiv 2506.13585)."""
    return SequenceObjective(Truncated(cap, floor), arithmetic, average=OverTokens())


def aspo(eps_low: float = 0.2, eps_high: float = 0.2, cap: float = 3.0) -> SequenceObjective:
    """DAPO with 1/ρ in the place of ρ where Â > 0, and a soft cap: ASPO (arXiv 2510.06062)."""
    return SequenceObjective(Flipped(eps_low, eps_high, cap), arithmetic, average=OverTokens())


def spo(eps: float = 0.2) -> SequenceObjective:
    """ρ Â − |Â| (ρ − 1)² / 2ε, a mean over all tokens: Simple Policy Optimization (arXiv 2401.16025).

    ε = 0.2 is that of PPO, which the penalty replaces; DRPO's paper compares with ε = 12.5 for language models.
    """
    return SequenceObjective(
        Identity(), arithmetic, average=OverTokens(), factor=QuadraticPenalty(eps, by_probability=False)
    )


def drpo(eps: float = 12.5) -> SequenceObjective:
    """ρ Â − |Â| π_old (ρ − 1)² / 2ε, a mean over all tokens: DRPO (arXiv 2606.09821).

    Its π_old is the engine's policy: `old_policy="rollout"`.
    """
    return SequenceObjective(Identity(), arithmetic, average=OverTokens(), factor=QuadraticPenalty(eps))


def dppo_tv(delta: float = 0.15, cap: float = 20.0, anchor: Anchor = "old") -> SequenceObjective:
    """sg(min(ρ, cap)) Â log π where π_θ has not left a region of total variation: DPPO-Binary-TV (arXiv 2602.04879).

    The values are those of verl, to which the authors contributed. They recommend the engine's policy as π_old
    (`old_policy="rollout"`) and the average of Dr. GRPO.
    """
    factor = TrustRegion(delta, "tv", anchor)
    return SequenceObjective(Truncated(cap), arithmetic, average=OverTokens(), factor=factor)


def dppo_kl(delta: float = 0.05, cap: float = 20.0, anchor: Anchor = "old") -> SequenceObjective:
    """sg(min(ρ, cap)) Â log π where π_θ has not left a region of binary KL: DPPO-Binary-KL (arXiv 2602.04879).

    See `dppo_tv`.
    """
    factor = TrustRegion(delta, "kl", anchor)
    return SequenceObjective(Truncated(cap), arithmetic, average=OverTokens(), factor=factor)


def opsm(eps_low: float = 0.2, eps_high: float = 0.2, delta: float = 0.5, anchor: Anchor = "old") -> SequenceObjective:
    """GRPO without the sequences of negative advantage from which π_θ has moved far: OPSM (arXiv 2512.02556)."""
    return SequenceObjective(Clip(eps_low, eps_high), arithmetic, factor=OffPolicySequences(delta, anchor))


def vespo(
    k_pos: float = 2.0, lambda_pos: float = 3.0, k_neg: float = 3.0, lambda_neg: float = 2.0
) -> SequenceObjective:
    """sg(φ(W_i)) Â_i log π, φ(W) = W^k e^{λ (1 − W)}, a mean over all tokens: VESPO (arXiv 2602.10693)."""
    kernel = GammaKernel(k_pos, lambda_pos, k_neg, lambda_neg)
    return SequenceObjective(Score(), arithmetic, average=OverTokens(), factor=kernel)


def vespo_documented() -> SequenceObjective:
    """VESPO with the constants that the documentation of the authors' code prints: (2, 1.5) and (4, 2.5)."""
    return vespo(2.0, 1.5, 4.0, 2.5)


def topr() -> SequenceObjective:
    """m_i Â_i (1/|y_i|) Σ_t log π, m_i = 1 where Â_i > 0 and sg(min(Π_t ρ_it, 1)) elsewhere: TOPR (arXiv 2503.14286).

    The limits are those of the paper's canonical form. verl takes the geometric mean for the product.
    """
    return SequenceObjective(Score(), arithmetic, factor=Tapered())


def minpro(cap: float = 5.0, floor: float = 0.0) -> SequenceObjective:
    """sg(clip(ρ_t min_{s<t} ρ_s, floor, cap)) Â log π, a mean over all tokens: MinPRO (arXiv 2601.22718).

    The bounds are those of `cispo`; those of the paper were not verified.
    """
    return SequenceObjective(Score(), arithmetic, average=OverTokens(), factor=LeastPrefix(cap, floor))


def dgpo(eps_low: float = 0.2, eps_high: float = 0.2, n: float = 1.0, m: float = 2.0) -> SequenceObjective:
    """PPO whose clipped tokens keep a decaying gradient, a mean over all tokens: DGPO (arXiv 2603.14389)."""
    return SequenceObjective(Decayed(eps_low, eps_high, n, m), arithmetic, average=OverTokens())


def maspo(sigma: float = 1.0, alpha: float = 0.3, beta_pos: float = 0.03, beta_neg: float = 0.03) -> SequenceObjective:
    """sg(e^{−(ρ − 1)² / 2σ²}) ρ Â where ρ has moved along Â, ρ Â elsewhere, a mean over all tokens: MASPO.

    Of arXiv 2602.17550. σ depends on the token's probability and on the advantage: see `GaussianDecay`.
    """
    factor = GaussianDecay(sigma, alpha, beta_pos, beta_neg)
    return SequenceObjective(Identity(), arithmetic, average=OverTokens(), factor=factor)


def ipo(eps: float = 0.3, anchor: Anchor = "old") -> SequenceObjective:
    """ρ Â where |π_θ − π| ≤ ε and 0 elsewhere, a mean over all tokens: INTELLECT Policy Optimization of prime-rl.

    Its π and π_old are the engine's policy: `old_policy="rollout"`.
    """
    factor = TrustRegion(eps, "tv", anchor, both_ways=True)
    return SequenceObjective(Identity(), arithmetic, average=OverTokens(), factor=factor)


def cppo(
    delta: float = 0.15, prefix_delta: float = 0.015, min_weight: float = 0.8, anchor: Anchor = "old"
) -> SequenceObjective:
    """ρ Â where a token and the prefix before it are within their regions, a mean over all tokens: CPPO.

    Of arXiv 2606.10968. Its π and π_old are the engine's policy: `old_policy="rollout"`. See `PrefixBudget`.
    """
    factor = PrefixBudget(delta, prefix_delta, min_weight, anchor)
    return SequenceObjective(Identity(), arithmetic, average=OverTokens(), factor=factor)


def icepop(floor: float = 0.5, cap: float = 5.0) -> Correction:
    """c_t where floor ≤ π_old / π_rollout ≤ cap, and 0 elsewhere: IcePop (arXiv 2510.18855), a correction."""
    return Correction("masked", "token", cap, floor)


def kpop(max_kl: float = 0.1) -> Correction:
    """c_t where the binary KL of π_old and π_rollout is at most max_kl both ways: KPop (ringtech.notion.site/kpop).

    A correction. 0.1 is the paper's value as prime-rl gives it (#3283).
    """
    return Correction("binary_kl", "token", max_kl=max_kl)
