"""Calls an objective with what TRL and verl have: padded matrices [B, L], and one share of a batch at a time."""

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.objective import Objective, Segments, Sums
from megatron_sspo.objective.checks import takes
from megatron_sspo.objective.inputs import needs_of


def check_objective(objective: Objective) -> None:
    """Checks that padded matrices hold all that an objective asks for.

    Raises:
        UserError: the objective is a function or class that was not called, or needs other inputs than log-probs and
            advantages.
    """
    if not takes(objective, "log_probs", "old_log_probs", "advantages", "segments"):
        raise UserError(f"the objective is {objective!r}: pass an object such as sspo() or grpo(eps_high=0.28)")
    if needs := needs_of(objective):
        raise UserError(
            f"the objective {type(objective).__name__} needs {', '.join(needs)}, which only "
            "megatron_sspo's own trainer has: choose one of log-probs and advantages only"
        )


def segments_of(mask: Tensor) -> Segments:
    """Returns the segments of the tokens that a mask [B, L] marks, row after row; rows may have holes."""
    mask = mask.bool()
    return Segments(ids=mask.nonzero()[:, 0], lengths=mask.sum(dim=1))


def padded_sums(
    objective: Objective, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, segments: Segments
) -> Sums:
    """Computes an objective from padded matrices.

    Args:
        objective: the objective.
        log_probs: [B, L] log π_θ.
        old_log_probs: [B, L] log π_old.
        advantages: [B] Â_i, or [B, L] with one value in all tokens of a row.
        mask: [B, L], true for the tokens of responses.
        segments: those of the mask.

    Raises:
        UserError: advantages differ inside a row.
        ValueError: log-probs are in half precision.
    """
    mask = mask.bool()
    if advantages.ndim == 2:
        advantages = _row_advantages(advantages, mask)
    return objective(log_probs[mask], old_log_probs[mask], advantages.to(log_probs.dtype), segments)


def _row_advantages(advantages: Tensor, mask: Tensor) -> Tensor:
    """Returns the one advantage of each row: [B, L] -> [B], 0 for a row without tokens."""
    low = advantages.masked_fill(~mask, torch.inf).amin(dim=1)
    high = advantages.masked_fill(~mask, -torch.inf).amax(dim=1)
    if (low < high).any():
        raise UserError(
            "advantages differ between the tokens of a response, and an objective has one for each response: choose an "
            "estimator of whole responses, such as grpo or rloo"
        )
    return high.masked_fill(~mask.any(dim=1), 0.0)
