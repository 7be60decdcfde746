"""Ragged batches, and the gradient that an objective has on a whole one."""

import torch
from torch import Tensor

from megatron_sspo.objective import (
    AtanLog,
    Gumbel,
    Objective,
    OverTokens,
    Pessimistic,
    Segments,
    SigLog,
    Sums,
    gmpo,
    grpo,
    gspo,
    sapo,
    sspo,
)

OBJECTIVES: dict[str, Objective] = {
    "sspo()": sspo(),
    "sspo(SigLog(0.6, 0.5))": sspo(SigLog(0.6, 0.5)),
    "sspo(Gumbel())": sspo(Gumbel()),
    "sspo(Pessimistic(AtanLog(), cap=3.0))": sspo(Pessimistic(AtanLog(), cap=3.0)),
    "grpo(eps_high=0.28)": grpo(eps_high=0.28),
    "gspo()": gspo(),
    "gmpo()": gmpo(),
    "sapo()": sapo(),
}


class MeanOverTokens:
    """Σ_t ρ_t Â / Σ_i |y_i|: an objective with an average of its own."""

    average = OverTokens()

    def __call__(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, segments: Segments) -> Sums:
        weighted = (log_probs - old_log_probs).exp() * segments.spread(advantages)
        return Sums(loss=-weighted.sum())


mean_over_tokens = MeanOverTokens()


def ragged_mask(rows: int, width: int) -> Tensor:
    """Returns a mask of rows of different lengths: the last is full, the first has one token, one has a hole."""
    lengths = torch.linspace(1, width, rows).round().long()
    mask = torch.arange(width) < lengths[:, None]
    mask[rows // 2, 1] = False  # what a tool wrote
    return mask


def gradient_of_formula(
    objective: Objective, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, divisor: float
) -> Tensor:
    """Returns the gradient [B, L] by the log-probs, sequence by sequence, over the whole batch."""
    leaf = log_probs.detach().clone().requires_grad_()
    total = torch.zeros((), dtype=leaf.dtype)
    for row in range(len(mask)):
        chosen = mask[row]
        segments = Segments.from_lengths([int(chosen.sum())])
        total = (
            total + objective(leaf[row][chosen], old_log_probs[row][chosen], advantages[row : row + 1], segments).loss
        )
    return torch.autograd.grad(total / divisor, leaf)[0]
