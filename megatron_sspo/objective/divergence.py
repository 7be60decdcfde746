"""Divergences of two distributions that are known at the sampled token only."""

import torch
from torch import Tensor


def binary_kl(log_q: Tensor, log_p: Tensor) -> Tensor:
    """q log(q/p) + (1 − q) log((1 − q)/(1 − p)): the KL of two distributions of two events."""
    # 1 − p = −expm1(log p), exact where p is close to 1; the smallest number that is not 0 keeps the logarithms finite
    tiny = torch.finfo(log_q.dtype).tiny
    rest_q, rest_p = (-torch.expm1(values.clamp(max=0.0)) for values in (log_q, log_p))
    others = rest_q * (rest_q.clamp(min=tiny).log() - rest_p.clamp(min=tiny).log())
    return log_q.exp() * (log_q - log_p) + others
