"""Compares an objective with stored values: its J and every entry of its gradient."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from megatron_sspo.objective import Segments
from megatron_sspo.objective.sums import Objective


def check_vector(case: Mapping[str, Any], objective: Objective, dtype: torch.dtype) -> None:
    """Checks J and its gradient, to 1e-10 in float64 and to 1e-5 in float32.

    Args:
        case: `log_probs` and `old_log_probs` of each sequence, `advantages`, and the expected `J` and `dJ_dlog_probs`.
    """

    def flat(name: str) -> torch.Tensor:
        return torch.tensor([value for sequence in case[name] for value in sequence], dtype=torch.float64)

    segments = Segments.from_lengths([len(sequence) for sequence in case["log_probs"]])
    log_probs = flat("log_probs").to(dtype).requires_grad_()
    advantages = torch.tensor(case["advantages"], dtype=dtype)
    value = -objective(log_probs, flat("old_log_probs").to(dtype), advantages, segments).loss / segments.num_sequences
    (gradient,) = torch.autograd.grad(value, log_probs)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    assert value.item() == pytest.approx(case["J"], rel=tolerance)
    torch.testing.assert_close(gradient.double(), flat("dJ_dlog_probs"), rtol=tolerance, atol=0)
