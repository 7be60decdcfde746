"""Objectives that are gates, a pooling and an average: GRPO, GSPO, GMPO, SAPO and SSPO."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatron_sspo.objective.average import Average, OverSequences, shares_of
from megatron_sspo.objective.checks import check_gate, describe_value, takes
from megatron_sspo.objective.gates import AtanLog, Clip, Gate, Identity, Sigmoid
from megatron_sspo.objective.in_place import kept
from megatron_sspo.objective.inputs import Factor, TokenInputs, needs_of
from megatron_sspo.objective.pooling import Pool, arithmetic, geometric, token_shares
from megatron_sspo.objective.segments import Segments
from megatron_sspo.objective.sums import Sums


@dataclass(frozen=True)
class SequenceObjective:
    """J(θ) = (1/N) Σ_i a_i w_i Â_i,   w_i = F( pool_t f(ρ_it; Â_i); Â_i ),   ρ_it = π_θ / π_old.

    f is the token gate and F the sequence gate. N and a_i are those of the average: S and 1 for the mean over
    sequences, so that J(θ) = E_i[ w_i Â_i ].

    If advantages are per token, or if there is a factor m_t, then w_i Â_i is Σ_t p_t u_t m_t Â_it. p_t is the share of
    the token in the pooled weight, ∂ log pool / ∂ log f_t, without gradient: 1/|y_i| if the pooling is geometric, and
    f_t / Σ_s f_s if it is arithmetic. u_t has the value F(pool; Â_it), and the gradient of its own token only. For
    Â_it = Â_i and m_t = 1 this has the value and the gradient of w_i Â_i. GSPO's paper calls its geometric form
    GSPO-token (arXiv 2507.18071).

    Raises:
        ValueError: a gate lacks one of the two methods, the pooling is not a function, the average or the factor is of
            another kind, or the factor needs an input that does not exist.
    """

    token_gate: Gate
    pool: Pool
    sequence_gate: Gate = Identity()  # noqa: RUF009 (frozen)
    average: Average = OverSequences()  # noqa: RUF009 (frozen)
    factor: Factor | None = None  # None: 1

    def __post_init__(self) -> None:
        for name in ("token_gate", "sequence_gate"):
            check_gate(self, name)
        if not takes(self.pool, "log_gate", "segments"):
            raise ValueError(f"pool is {describe_value(self.pool)}, and must be a function, such as geometric")
        if isinstance(self.average, type) or not callable(getattr(self.average, "divisor", None)):
            raise ValueError(f"average is {describe_value(self.average)}, and must be an average, such as OverTokens()")
        if self.factor is not None and not takes(self.factor, "inputs"):
            raise ValueError(
                f"factor is {describe_value(self.factor)}, and must be a factor, such as EntropyBand(), or None"
            )
        needs_of(self.factor)

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the keyword arguments besides log-probs, advantages and segments."""
        return needs_of(self.factor)

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, segments: Segments, **inputs: Tensor
    ) -> Sums:
        """Computes minus the sum of a_i w_i Â_i over the sequences of a microbatch.

        An empty sequence has w_i = 1 and no gradient. A sequence or token whose advantage is 0 has no gradient either,
        however far ρ is from 1.

        Args:
            log_probs: [T] log π_θ of the response tokens, float32 or float64.
            old_log_probs: [T] log π_old of the same tokens, float32 or float64.
            advantages: [S] Â_i or [T] Â_it; [S] if T = S.
            segments: the tokens of each sequence.
            inputs: [T] each: what `needs` names.

        Returns:
            `loss`, a scalar; `tokens`: `log_ratio` and `token_weight`, which is the token gate's w times the sequence
            gate's w times m_t, so it is 0 in a sequence that GSPO clips; `sequences`: `sequence_weight` w_i, which is
            the mean of u_t if advantages are per token.

        Raises:
            ValueError: a shape is wrong, log-probs are in half precision, an input is missing, or a gate, the pool or
                the factor changes in place what it is given.
        """
        segments.check_tokens("log_probs", log_probs)
        segments.check_tokens("old_log_probs", old_log_probs)
        is_per_token = segments.are_per_token("advantages", advantages)
        log_ratio = log_probs - old_log_probs  # [T]
        token_advantages = advantages if is_per_token else segments.spread(advantages)  # [T]
        log_gate = _gate(self.token_gate, log_ratio, token_advantages)  # [T]
        token_weight = self.token_gate.weight(log_ratio.detach(), token_advantages)  # [T]
        if is_per_token or self.factor is not None:
            multiplier = self._multiplier(log_probs, old_log_probs, token_advantages, segments, inputs)  # [T]
            loss, weight, rest = self._by_token(log_gate, token_advantages, multiplier, segments)
        else:
            loss, weight, rest = self._by_sequence(log_gate, advantages, segments)
        return Sums(
            loss=loss,
            tokens={"log_ratio": log_ratio.detach(), "token_weight": token_weight * rest},
            sequences={"sequence_weight": weight},
        )

    def _by_sequence(self, log_gate: Tensor, advantages: Tensor, segments: Segments) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the loss, w_i [S], and the sequence gate's w of each token [T]; the last two detached."""
        log_weight = self._pooled(log_gate, segments)  # [S]
        # where Â = 0 the weight may overflow, and its product with 0 would not be 0
        unused = advantages == 0
        weight = _gate(self.sequence_gate, log_weight.masked_fill(unused, 0.0), advantages).exp()  # [S]
        loss = -(shares_of(self.average, segments) * (weight * advantages)).sum()
        log_weight = log_weight.detach()
        reported = _finite(self.sequence_gate.log_gate(log_weight, advantages).exp())
        return loss, reported, segments.spread(self.sequence_gate.weight(log_weight, advantages))

    def _by_token(
        self, log_gate: Tensor, token_advantages: Tensor, multiplier: Tensor, segments: Segments
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the loss, the mean of u_t of each sequence [S], and the sequence gate's w times m_t [T].

        The last two are detached.

        Args:
            multiplier: m_t [T], which may be infinite where Â = 0.
        """
        effective = torch.where(token_advantages == 0, 0.0, token_advantages * multiplier)  # m_t Â_it
        values = log_gate.detach()
        log_weight = segments.spread(self._pooled(values, segments))  # [T]
        # in float64, because one far token makes the shares of the others tiny
        share = token_shares(self.pool, values.double(), segments)  # p_t [T]
        # shares add up to 1, except those of a product, whose value is w_i Â_i too
        total = segments.spread(segments.sum(share))
        # the value of the sequence's log weight, and the gradient of the token's own log gate
        own = log_weight + total.to(values.dtype) * (log_gate - values)
        log_used = _gate(self.sequence_gate, own.masked_fill(effective == 0, 0.0), token_advantages)  # log u_t [T]
        # as one exponent, because p_t may underflow and u_t overflow where their product does neither
        contribution = ((share / total).log().to(values.dtype) + log_used).exp()
        loss = -(segments.spread(shares_of(self.average, segments)) * (contribution * effective)).sum()
        reported = _finite(segments.mean(self.sequence_gate.log_gate(log_weight, token_advantages).exp()))
        rest = self.sequence_gate.weight(log_weight, token_advantages) * multiplier
        return loss, reported.masked_fill(segments.lengths == 0, 1.0), rest

    def _pooled(self, log_gate: Tensor, segments: Segments) -> Tensor:
        """Returns the log weights of the sequences, before the sequence gate: [T] -> [S]."""
        with kept("pool", log_gate=log_gate):
            log_weight = self.pool(log_gate, segments)
        if log_weight.shape != segments.lengths.shape:
            raise ValueError(
                f"pool returned shape {list(log_weight.shape)}, and must return one log weight for each of the "
                f"[{segments.num_sequences}] sequences of [{segments.num_tokens}] tokens"
            )
        return log_weight

    def _multiplier(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        token_advantages: Tensor,
        segments: Segments,
        inputs: Mapping[str, Tensor],
    ) -> Tensor:
        """Returns m_t [T], detached; 1 without a factor."""
        if self.factor is None:
            return torch.ones_like(token_advantages)
        if missing := [name for name in self.needs if inputs.get(name) is None]:
            raise ValueError(
                f"{type(self.factor).__name__} needs {', '.join(missing)}, which the objective was not given"
            )
        for name in self.needs:
            segments.check_tokens(name, inputs[name])
        others = {name: inputs[name].detach() for name in self.needs}
        given = TokenInputs(log_probs.detach(), old_log_probs.detach(), token_advantages, segments, others)
        tensors = {"log_probs": given.log_probs, "old_log_probs": given.old_log_probs, "advantages": given.advantages}
        with kept("factor", **tensors, **others):
            return self.factor(given).detach()


def _gate(gate: Gate, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """Returns log f with the gradient w = d log f / d log ρ of the gate, which need not be its derivative."""
    given = log_ratio.detach()
    with kept(f"the gate {type(gate).__name__}", log_ratio=given, advantage=advantages):
        return _WithGradient.apply(log_ratio, gate.log_gate(given, advantages), gate.weight(given, advantages))


def _finite(values: Tensor) -> Tensor:
    """Returns values without their graph and at most the largest number of the dtype: their mean is a metric."""
    return values.detach().clamp(max=torch.finfo(values.dtype).max)


class _WithGradient(torch.autograd.Function):
    """`log_gate` with the derivative `weight` by `log_ratio`, which the gate computes, so autograd does not have to."""

    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, log_gate: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return log_gate

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * ctx.saved_tensors[0], None, None


def grpo(eps_low: float = 0.2, eps_high: float = 0.2) -> SequenceObjective:
    """(1/|y_i|) Σ_t f_Clip(ρ_it; Â_i) Â_i: Group Relative Policy Optimization (arXiv 2402.03300)."""
    return SequenceObjective(Clip(eps_low, eps_high), arithmetic)


def gspo(eps_low: float = 3e-4, eps_high: float = 4e-4) -> SequenceObjective:
    """f_Clip(s_i; Â_i) Â_i with s_i = (Π_t ρ_it)^{1/|y_i|}: Group Sequence Policy Optimization (arXiv 2507.18071)."""
    return SequenceObjective(Identity(), geometric, Clip(eps_low, eps_high))


def gmpo(eps_low: float = 0.2, eps_high: float = 0.2) -> SequenceObjective:
    """(Π_t f_Clip(ρ_it; Â_i))^{1/|y_i|} Â_i: Geometric-Mean Policy Optimization (arXiv 2507.20673).

    Ratios are clipped at 1 ± ε, as in arXiv 2602.19327. GMPO's own paper has the bounds ±0.4 in log space: for these,
    pass ε_low = 1 − e^{−0.4} and ε_high = e^{0.4} − 1.
    """
    return SequenceObjective(Clip(eps_low, eps_high), geometric)


def sapo(tau_neg: float = 1.05, tau_pos: float = 1.0) -> SequenceObjective:
    """(1/|y_i|) Σ_t (4/τ) σ(τ(ρ_it − 1)) Â_i: Soft Adaptive Policy Optimization (arXiv 2511.20347)."""
    return SequenceObjective(Sigmoid(tau_neg, tau_pos), arithmetic)


def sspo(gate: Gate = AtanLog()) -> SequenceObjective:  # noqa: B008 (frozen)
    """(Π_t f(ρ_it; Â_i))^{1/|y_i|} Â_i: Soft Sequence Policy Optimization (arXiv 2602.19327)."""
    return SequenceObjective(gate, geometric)
