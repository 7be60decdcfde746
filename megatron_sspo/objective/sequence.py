"""Objectives that are a gate and a pooling: GRPO, GSPO, GMPO, SAPO and SSPO."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatron_sspo.objective.gates import AtanLog, Clip, Gate, Identity, Sigmoid
from megatron_sspo.objective.numbers import check_gate, shown
from megatron_sspo.objective.pooling import Pool, arithmetic, geometric
from megatron_sspo.objective.segments import Segments
from megatron_sspo.objective.sums import Sums


@dataclass(frozen=True)
class SequenceObjective:
    """J(θ) = E_i[ w_i Â_i ],   w_i = F( pool_t f(ρ_it; Â_i); Â_i ),   ρ_it = π_θ / π_old.

    f is the token gate and F the sequence gate.

    Raises:
        ValueError: a gate lacks one of the two methods, or the pooling is not a function.
    """

    token_gate: Gate
    pool: Pool
    sequence_gate: Gate = Identity()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        for name in ("token_gate", "sequence_gate"):
            check_gate(self, name)
        if isinstance(self.pool, type) or not callable(self.pool):
            raise ValueError(f"pool is {shown(self.pool)}, and must be a function, such as geometric")

    def __call__(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, segments: Segments) -> Sums:
        """Computes minus the sum of w_i Â_i over the sequences of a microbatch.

        An empty sequence has w_i = 1 and no gradient.

        Args:
            log_probs: [T] log π_θ of the response tokens, float32 or float64.
            old_log_probs: [T] log π_old of the same tokens, float32 or float64.
            advantages: [S] Â_i.
            segments: the tokens of each sequence.

        Returns:
            `loss`, a scalar; `tokens`: `log_ratio` and `token_weight`, which is the token gate's w times the sequence
            gate's w, so it is 0 in a sequence that GSPO clips; `sequences`: `sequence_weight` w_i.

        Raises:
            ValueError: a shape is wrong, or log-probs are in half precision.
        """
        segments.check_tokens("log_probs", log_probs)
        segments.check_tokens("old_log_probs", old_log_probs)
        segments.check_sequences("advantages", advantages)
        log_ratio = log_probs - old_log_probs  # [T]
        token_advantages = segments.spread(advantages)  # [T]
        token_weight = self.token_gate.weight(log_ratio.detach(), token_advantages)  # [T]
        log_gate = self.token_gate.log_gate(log_ratio.detach(), token_advantages)  # [T]
        log_gate = _WithGradient.apply(log_ratio, log_gate, token_weight)  # w = d log f / d log ρ
        log_weight = self.pool(log_gate, segments)  # [S]
        weight = self.sequence_gate.log_gate(log_weight, advantages).exp()  # [S]

        if not isinstance(self.sequence_gate, Identity):  # the weight of Identity is 1
            gate_of_sequence = self.sequence_gate.weight(log_weight.detach(), advantages)
            token_weight = token_weight * segments.spread(gate_of_sequence)
        return Sums(
            loss=-(weight * advantages).sum(),
            tokens={
                "log_ratio": log_ratio.detach(),
                "token_weight": token_weight,
            },
            sequences={"sequence_weight": weight.detach()},
        )


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
