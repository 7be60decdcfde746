"""Token log-probs and entropy from vocabulary-parallel logits: fp32, chunked over rows, one pass."""

from typing import Any

import torch
import torch.distributed as dist

_ROWS_PER_CHUNK = 1024  # bounds the fp32 scratch at [rows, V/TP]


def log_probs_and_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float,
    vocab_size: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log π(label) and the entropy of π = softmax(logits / temperature), row by row.

    Args:
        logits: [R, V/TP], this rank's columns of the padded vocabulary, any floating type. Overwritten by the
            gradient in the backward pass.
        labels: [R] int64, global token ids.
        temperature: of the distribution that the responses were sampled from.
        vocab_size: V without padding; columns beyond it have probability 0.
        group: the tensor-parallel group; None for a whole vocabulary.

    Returns:
        [R] float32 each (float64 from float64 logits): log-probs and entropies, both differentiable.
    """
    return _LogProbsAndEntropy.apply(logits, labels, temperature, vocab_size, group)  # pyright: ignore


class _LogProbsAndEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, temperature: float, vocab_size: int, group: Any) -> Any:
        num_rows, width = logits.shape
        first = width * (dist.get_rank(group) if group is not None else 0)
        valid = max(0, min(width, vocab_size - first))
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        # per row: max, Σ e^{z−max}, Σ z e^{z−max}, z[label], where z is the scaled logit
        maximum = torch.full((num_rows,), -torch.inf, dtype=wide, device=logits.device)
        if valid and num_rows:
            maximum = logits[:, :valid].amax(dim=1).to(wide) / temperature
        if group is not None:
            dist.all_reduce(maximum, dist.ReduceOp.MAX, group=group)
        sums = torch.zeros(3, num_rows, dtype=wide, device=logits.device)
        local = labels - first
        owned = (local >= 0) & (local < valid)
        for rows in _chunks(num_rows):
            z = (logits[rows, :valid].to(wide) / temperature).sub_(maximum[rows, None])
            target = z.gather(1, local[rows].clamp(0, max(valid - 1, 0))[:, None])[:, 0] if valid else 0.0
            sums[2, rows] = torch.where(owned[rows], target, 0.0)
            exponential = z.exp()
            sums[0, rows] = exponential.sum(dim=1)
            sums[1, rows] = exponential.mul_(z).sum(dim=1)
        if group is not None:
            dist.all_reduce(sums, group=group)
        log_normalizer = sums[0].log()
        mean_z = sums[1] / sums[0]
        log_probs, entropy = sums[2] - log_normalizer, log_normalizer - mean_z
        ctx.save_for_backward(logits, local, owned, maximum + log_normalizer, entropy)
        ctx.temperature, ctx.valid = temperature, valid
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, grad_log_probs: Any, grad_entropy: Any) -> Any:  # pyright: ignore
        """dz = g·(1[label] − p) − h·p·(log p + H), then dlogits = dz / temperature, in place of the logits."""
        logits, local, owned, log_normalizer, entropy = ctx.saved_tensors
        for rows in _chunks(logits.size(0)):
            part = logits[rows, : ctx.valid]
            log_p = (part.to(log_normalizer.dtype) / ctx.temperature).sub_(log_normalizer[rows, None])
            p = log_p.exp()
            gradient = log_p.add_(entropy[rows, None]).mul_(-grad_entropy[rows, None])
            gradient.sub_(grad_log_probs[rows, None]).mul_(p)
            mine = owned[rows].nonzero()[:, 0]
            gradient[mine, local[rows][mine]] += grad_log_probs[rows][mine]
            part.copy_(gradient.div_(ctx.temperature))
        logits[:, ctx.valid :] = 0
        return logits, None, None, None, None


def _chunks(num_rows: int) -> list[slice]:
    return [slice(start, start + _ROWS_PER_CHUNK) for start in range(0, num_rows, _ROWS_PER_CHUNK)]
