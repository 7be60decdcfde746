"""The arithmetic of token log-probs and entropy, block by block of logits: float32, in tiles of a cache's size.

On a GPU with Triton, a kernel takes the place of a block's tiles.

All results follow from four numbers per row, over the columns x of the logits seen so far, at the temperature τ:

    m = max x,   z = (x − m)/τ,   s = Σ e^z,   u = Σ z e^z,   t = x[label]

For no columns they are (−∞, 0, 0, −∞), the identity of the merge. For the whole vocabulary

    log π(label) = (t − m)/τ − log s,   H(π) = log s − u/s

The maximum is subtracted before the division, so that logits far from 0 lose no precision.
"""

import importlib.util
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from megatron_sspo.memory.head import TILE


def columns_of_rank(width: int, vocab_size: int, group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Returns (the global id of this rank's first column, how many of its `width` columns are not padding)."""
    first = width * (dist.get_rank(group) if group is not None else 0)
    return first, max(0, min(width, vocab_size - first))


class Statistics:
    """The statistics m, s, u and t of R rows, to which blocks of columns are added one after the other.

    Args:
        like: a tensor with the device and dtype of the logits; float64 stays float64, all else becomes float32.
    """

    def __init__(self, num_rows: int, temperature: float, like: torch.Tensor) -> None:
        self.temperature = temperature
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.values = torch.zeros(4, num_rows, dtype=dtype, device=like.device)
        self.values[::3] = -torch.inf  # m and t
        self.scratch = _Scratch(dtype, like.device)

    def add(self, logits: torch.Tensor, local: torch.Tensor) -> None:
        """Adds a block of columns.

        Args:
            logits: [R, B], unscaled.
            local: [R], labels as column numbers of the block; labels outside of it belong to other blocks.
        """
        if not logits.size(1):
            return
        if kernels := gpu_kernels(self.values):
            kernels.add_block(self.values, logits, local, self.temperature)
            return
        maximum, total, weighted, target = self.values
        for rows, columns, z, exponential in self.scratch.tiles(logits):
            z.copy_(logits[rows, columns])
            m = torch.maximum(maximum[rows], z.amax(dim=1))
            _scale(z, m, self.temperature)
            torch.exp(z, out=exponential)
            s, u = self._rescale(maximum[rows], total[rows], weighted[rows], m)
            total[rows] = exponential.sum(dim=1).add_(s)
            weighted[rows] = exponential.mul_(z).sum(dim=1).add_(u)
            maximum[rows] = m
        inside = (local >= 0) & (local < logits.size(1))
        found = logits.gather(1, _clamp(local, logits)[:, None])[:, 0].to(target.dtype)
        torch.where(inside, found, target, out=target)

    def finish(self, group: dist.ProcessGroup | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns log π(label), entropy and τ log Σ e^(x/τ) over all ranks' columns, [R] each.

        A collective: one all-gather.
        """
        maximum, total, weighted, target = self.values
        if group is not None:
            gathered = [torch.empty_like(self.values) for _ in range(dist.get_world_size(group))]
            dist.all_gather(gathered, self.values, group=group)
            maxima, totals, weights, targets = torch.stack(gathered, dim=1)  # [TP, R] each
            maximum, target = maxima.amax(dim=0), targets.amax(dim=0)
            totals, weights = self._rescale(maxima, totals, weights, maximum)
            total, weighted = totals.sum(dim=0), weights.sum(dim=0)
        log_total = total.log()
        log_probs = (target - maximum) / self.temperature - log_total
        return log_probs, log_total - weighted / total, maximum + self.temperature * log_total

    def _rescale(
        self, maximum: torch.Tensor, total: torch.Tensor, weighted: torch.Tensor, new_maximum: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns s and u relative to a new maximum, which is at least as large."""
        # before the first column, s and u are 0 and stay 0 under any finite shift; −∞ would give 0 · ∞
        shift = ((maximum - new_maximum) / self.temperature).masked_fill(maximum == -torch.inf, 0)
        factor = shift.exp()
        return total * factor, (weighted + shift * total) * factor


class Gradient:
    """dL/dlogits of L = Σ g·log π(label) + h·H, from the numbers that the forward pass kept for each row.

        dL/dx = ( g·(1[label] − p) − h·p·(log p + H) ) / τ

    Args:
        grad_log_probs, grad_entropy: g and h, [R] each, or None for zero. Without h its terms are not computed.
        log_probs, entropy, log_normalizer: the results of `Statistics.finish`.
    """

    def __init__(
        self,
        grad_log_probs: torch.Tensor | None,
        grad_entropy: torch.Tensor | None,
        log_probs: torch.Tensor,
        entropy: torch.Tensor,
        log_normalizer: torch.Tensor,
        temperature: float,
    ) -> None:
        self.temperature, self.entropy, self.log_normalizer = temperature, entropy, log_normalizer
        self.g = torch.zeros_like(entropy) if grad_log_probs is None else grad_log_probs / temperature
        self.h = None if grad_entropy is None else grad_entropy / temperature
        self.at_label = -self.g * torch.expm1(log_probs)
        if self.h is not None:
            self.at_label -= self.h * log_probs.exp() * (log_probs + entropy)
        self.scratch = _Scratch(entropy.dtype, entropy.device)

    def write(self, logits: torch.Tensor, local: torch.Tensor, *, out: torch.Tensor) -> None:
        """Writes dL/dlogits of a block of columns; arguments as in `Statistics.add`, and `out` may be `logits`."""
        if not logits.size(1):
            return
        if kernels := gpu_kernels(self.entropy):
            self.write_by_kernel(kernels, logits, local, out=out)
            return
        for rows, columns, z, p in self.scratch.tiles(logits):
            z.copy_(logits[rows, columns])
            _scale(z, self.log_normalizer[rows], self.temperature)
            g = self.g[rows, None]
            if self.h is None:
                z.exp_().mul_(-g)
            else:
                torch.exp(z, out=p)
                z.add_(self.entropy[rows, None]).mul_(-self.h[rows, None]).sub_(g).mul_(p)
            out[rows, columns] = z
        # the label's element of a row is written again if it is in this block: no row numbers have to leave the device
        inside = (local >= 0) & (local < logits.size(1))
        one_each = (torch.arange(len(local), device=local.device), _clamp(local, logits))
        out[one_each] = torch.where(inside, self.at_label.to(out.dtype), out[one_each])

    def write_by_kernel(self, kernels: Any, logits: torch.Tensor, local: torch.Tensor, *, out: torch.Tensor) -> None:
        """Does what `write` does by a kernel of the module `kernels`."""
        kernels.write_gradient(
            out,
            logits,
            local,
            log_normalizer=self.log_normalizer,
            entropy=self.entropy,
            g=self.g,
            h=self.h,
            at_label=self.at_label,
            temperature=self.temperature,
        )


class _Scratch:
    """Two buffers of one tile each, reused for every tile, because new memory would cost more than the arithmetic."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.size = TILE.get(device.type, TILE["cuda"])
        self.buffers = torch.empty(2, 0, dtype=dtype, device=device)

    def tiles(self, block: torch.Tensor) -> Iterator[tuple[slice, slice, torch.Tensor, torch.Tensor]]:
        """Yields (rows, columns, buffer, buffer) of tiles that cover the block; the buffers have the tile's shape."""
        num_rows, num_columns = block.shape
        wanted = min(self.size, block.numel())
        if self.buffers.size(1) < wanted:
            self.buffers = self.buffers.new_empty(2, wanted)
        width = min(num_columns, self.size // 16)
        height = self.size // width
        for row in range(0, num_rows, height):
            rows = slice(row, min(row + height, num_rows))
            for column in range(0, num_columns, width):
                columns = slice(column, min(column + width, num_columns))
                shape = (rows.stop - rows.start, columns.stop - columns.start)
                first, second = self.buffers[:, : shape[0] * shape[1]]
                yield rows, columns, first.view(shape), second.view(shape)


def gpu_kernels(like: torch.Tensor) -> Any:
    """Returns the module of kernels for numbers of this dtype and device; None where tiles compute them."""
    return _import_kernels() if like.is_cuda and like.dtype == torch.float32 else None


@cache
def _import_kernels() -> Any:
    """Imports the kernels, if Triton is installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    from megatron_sspo.policy.head import kernels

    return kernels


def _scale(tile: torch.Tensor, offset: torch.Tensor, temperature: float) -> None:
    tile.sub_(offset[:, None])
    if temperature != 1:
        tile.div_(temperature)


def _clamp(local: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    return local.clamp(0, block.size(1) - 1)
