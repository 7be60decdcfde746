"""Lowers the learning rate of an update whose rollouts are stale: docs/staleness.md."""

import math
from collections.abc import Sequence

import torch

from megatron_sspo.policy.metrics import effective_sample_size
from megatron_sspo.run import Optimizer


def rate_scale(options: Optimizer, log_ratio: torch.Tensor, lengths: Sequence[int]) -> float:
    """Returns the smaller factor of the two rules, from 0 to 1; 1 without a rule, and on-policy, where log ρ is 0.

    By the effective sample size (VCPO, arXiv:2602.17616): √min(1, ESS / (S · full_rate_ess)), where
    ESS = (Σ_i w_i)² / Σ_i w_i² over S sequences and w_i = Π_t ρ_it. By the divergence: √min(1, full_rate_kl / KL),
    where KL is the mean of ρ − 1 − log ρ over the tokens.

    Args:
        log_ratio: [R] log ρ of every response token, one sequence after the other.
        lengths: [S] tokens of each sequence, in the same order.
    """
    log_ratio, factors = log_ratio.double(), [1.0]
    if options.full_rate_ess:
        sums = torch.stack([part.sum() for part in log_ratio.split(list(lengths))])
        weights = (sums - sums.max()).exp()  # the share is that of w_i, which might overflow
        factors.append(effective_sample_size(weights) / options.full_rate_ess)
    if options.full_rate_kl and (kl := float((log_ratio.expm1() - log_ratio).mean())) > 0:
        factors.append(options.full_rate_kl / kl)
    return math.sqrt(min(factors))
