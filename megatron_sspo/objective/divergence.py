"""Divergences of two distributions that are known at the sampled token only, or at the k likeliest ones of one."""

import math

import torch
from torch import Tensor

_LEAST_REST = 1e-6  # about the rounding error of a sum of float32 probabilities


def binary_kl(log_q: Tensor, log_p: Tensor) -> Tensor:
    """q log(q/p) + (1 − q) log((1 − q)/(1 − p)): the KL of two distributions of two events."""
    # 1 − p = −expm1(log p), exact where p is close to 1; the smallest number that is not 0 keeps the logarithms finite
    tiny = torch.finfo(log_q.dtype).tiny
    rest_q, rest_p = (-torch.expm1(values.clamp(max=0.0)) for values in (log_q, log_p))
    others = rest_q * (rest_q.clamp(min=tiny).log() - rest_p.clamp(min=tiny).log())
    return log_q.exp() * (log_q - log_p) + others


def with_rest(log_p: Tensor) -> Tensor:
    """Appends the log-prob of all other events together, [R, k] -> [R, k + 1]; their probability is at least 1e-6."""
    rest = (1 - log_p.exp().sum(dim=-1, keepdim=True)).clamp(min=_LEAST_REST)
    return torch.cat([log_p, rest.log()], dim=-1)


def generalized_jsd(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """β KL(p‖m) + (1 − β) KL(q‖m), m = β p + (1 − β) q: [R, n] -> [R], of p and q over the same n events.

    This is GKD's (arXiv:2306.13649). At β = 0 it is KL(p‖q), and at β = 1 KL(q‖p): the limits of it divided by β or by
    1 − β.
    """
    if beta in (0, 1):
        log_p, log_q = (log_p, log_q) if beta == 0 else (log_q, log_p)
        return (log_p.exp() * (log_p - log_q)).sum(dim=-1)
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    of_p, of_q = ((log.exp() * (log - log_m)).sum(dim=-1) for log in (log_p, log_q))
    return beta * of_p + (1 - beta) * of_q
