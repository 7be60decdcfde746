"""Calls an objective with what TRL and verl have: padded matrices [B, L], and one share of a batch at a time."""

import torch
from torch import Tensor

from megatron_sspo.config import check_objective as check
from megatron_sspo.config.naming import describe_value
from megatron_sspo.errors import UserError
from megatron_sspo.objective import Objective, Segments, Sums
from megatron_sspo.objective.correction import scale_gradient
from megatron_sspo.objective.inputs import needs_of


@torch.enable_grad()
def check_objective(objective: Objective) -> None:
    """Checks that padded matrices hold all that an objective asks for, and calls it on batches of three tokens.

    Raises UserError if it cannot be one, such as a function that was not called, or needs more than log-probs and
    advantages.
    """
    try:
        check.check_objective(objective)
    except ValueError as error:
        raise UserError(f"the objective is {describe_value(objective)}: it must be {error}") from error
    if needs := needs_of(objective):
        raise UserError(
            f"the objective {type(objective).__name__} needs {', '.join(needs)}, which only "
            "megatron_sspo's own trainer has: choose one of log-probs and advantages only"
        )


def corrected(log_probs: Tensor, weights: Tensor | None, mask: Tensor) -> Tensor:
    """Returns log-probs [B, L] through which the gradient of each token is multiplied by its weight.

    Args:
        log_probs: [B, L] log π_θ.
        weights: [B, L] or [B, 1]; they may be anything where the mask is false, NaN too. None: 1.
        mask: [B, L], true for the tokens of responses.
    """
    return log_probs if weights is None else scale_gradient(log_probs, torch.where(mask.bool(), weights, 1.0))


def segments_of(mask: Tensor) -> Segments:
    """Returns the segments of the tokens that a mask [B, L] marks, row after row; rows may have holes."""
    mask = mask.bool()
    return Segments(ids=mask.nonzero()[:, 0], lengths=mask.sum(dim=1))


def padded_sums(
    objective: Objective, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, segments: Segments
) -> Sums:
    """Computes an objective from log π_θ [B, L] and log π_old [B, L].

    Args:
        advantages: [B] Â_i, or [B, L] with one value in all tokens of a row.
        mask: [B, L], true for the tokens of responses; `segments` are those of the mask.

    Raises:
        UserError: advantages differ inside a row, or log-probs are in half precision.
    """
    mask = mask.bool()
    for name, values in (("log-probs of the policy", log_probs), ("old log-probs", old_log_probs)):
        if values.dtype in (torch.bfloat16, torch.float16):
            raise UserError(
                f"the {name} are {values.dtype}, whose rounding adds more noise than the policy moves in a step: let "
                "the trainer compute log-probs in float32 (verl does so with flash-attn, if VERL_DISABLE_FLASH_ATTN_CE "
                "is not 1)"
            )
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
