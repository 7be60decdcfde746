"""Pooling of the log gates of a sequence's tokens into the log weight of the sequence.

A pool takes `log_gate` [T] and the segments, and returns log weights [S]. An empty sequence has log weight 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from megatron_sspo.objective.segments import Segments

Pool = Callable[[Tensor, Segments], Tensor]


def geometric(log_gate: Tensor, segments: Segments) -> Tensor:
    """log (Π_t f_t)^{1/|y_i|} = (1/|y_i|) Σ_t log f_t: [T] -> [S]. Used by GSPO, GMPO and SSPO."""
    return segments.mean(log_gate)


def product(log_gate: Tensor, segments: Segments) -> Tensor:
    """log Π_t f_t: [T] -> [S]. Used by RLOO."""
    return segments.sum(log_gate)


def arithmetic(log_gate: Tensor, segments: Segments) -> Tensor:
    """log (1/|y_i|) Σ_t f_t: [T] -> [S]. Used by GRPO and SAPO."""
    # Each sequence is shifted by its own largest log gate, so that exp neither overflows nor underflows for all of it.
    shift = segments.max(log_gate.detach())
    mean = segments.mean(torch.exp(log_gate - shift[segments.ids]))
    # An empty sequence has mean 0 and shift -inf: replace them by 1 and 0 before the log, whose backward would be NaN.
    empty = segments.lengths == 0
    return torch.log(mean.masked_fill(empty, 1.0)) + shift.masked_fill(empty, 0.0)


def token_shares(pool: Pool, log_gate: Tensor, segments: Segments) -> Tensor:
    """p_t = ∂ log (pooled weight) / ∂ log f_t, detached: [T]; 1/|y_i| if the pooling is geometric."""
    with torch.enable_grad():
        leaf = log_gate.detach().requires_grad_()
        return torch.autograd.grad(pool(leaf, segments).sum(), leaf)[0]
