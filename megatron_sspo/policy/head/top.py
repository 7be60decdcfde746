"""Log-probs of k tokens of each row that are given, those of the k likeliest tokens, and the gradient of the first."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from megatron_sspo.objective.divergence import with_rest
from megatron_sspo.policy.head.log_probs import Gradient

_LEAST = -100.0  # a log-prob that is as good as −∞


class TopTokens:
    """The logits of the tokens [R, k], global ids that differ within a row, from blocks of columns."""

    def __init__(self, tokens: torch.Tensor, dtype: torch.dtype) -> None:
        self.tokens = tokens
        self.logits = torch.full(tokens.shape, -torch.inf, dtype=dtype, device=tokens.device)

    def look_up(self, logits: torch.Tensor, first: int) -> None:
        """Reads a block of columns, of which the first is that of token `first`."""
        columns, inside = _columns(self.tokens - first, logits)
        self.logits = torch.where(inside, logits.gather(1, columns).to(self.logits.dtype), self.logits)

    def finish(self, log_normalizer: torch.Tensor, temperature: float, group: dist.ProcessGroup | None) -> torch.Tensor:
        """Returns log π of the tokens and of all others together, [R, k + 1]. A collective."""
        if group is not None:
            dist.all_reduce(self.logits, dist.ReduceOp.MAX, group=group)
        # a teacher with more embeddings may give tokens that the policy lacks
        return with_rest(((self.logits - log_normalizer[:, None]) / temperature).clamp(min=_LEAST))


class TopGradient:
    """dL/dlogits at given tokens, and what they change at others: adds to `gradient`, whose blocks are written first.

    With g of the label, g_j of a token, g_r of the rest, G their sum and p_r = Σ p of the rest, dL/dx is

        ( g·1[label] + g_j − G·p ) / τ at a token,   ( g·1[label] + (g_r/p_r − G)·p ) / τ at one of the rest

    Args:
        grad_top: [R, k + 1], of `log_probs`, the result of `TopTokens.finish`.
        label_log_probs, is_label: [R] log-probs of the labels, and [R, k] which of the tokens is its row's label.
    """

    def __init__(
        self,
        gradient: Gradient,
        grad_top: torch.Tensor,
        log_probs: torch.Tensor,
        label_log_probs: torch.Tensor,
        is_label: torch.Tensor,
    ) -> None:
        g, h, p = gradient.g, gradient.h, log_probs.exp()
        of_tokens, of_rest = (grad_top / gradient.temperature).split([p.size(1) - 1, 1], dim=1)
        total, per_rest = g + of_tokens.sum(1) + of_rest[:, 0], of_rest[:, 0] / p[:, -1]
        of_label = (of_tokens * is_label).sum(1)
        label_p, own = label_log_probs.exp(), g + of_label
        gradient.at_label += per_rest.masked_fill(is_label.any(1), 0) * label_p
        gradient.at_label -= of_label * torch.expm1(label_log_probs) + (total - own) * label_p
        gradient.g = total - per_rest
        own, log_p, p = of_tokens + is_label * g[:, None], log_probs[:, :-1], p[:, :-1]
        # g − G·p without cancellation where p is close to 1
        self.at_tokens = -own * torch.expm1(log_p) - (total[:, None] - own) * p
        if h is not None:
            self.at_tokens -= h[:, None] * p * (log_p + gradient.entropy[:, None])

    def write(self, local: torch.Tensor, *, out: torch.Tensor) -> None:
        """Writes the tokens' elements of a block, whose column numbers are `local`, over what `Gradient` wrote."""
        if not local.size(1):
            return
        columns, inside = _columns(local, out)
        # a token of another block stands for one of this block, so that no element is written with two values
        order = torch.arange(local.size(1), device=local.device)
        chosen = torch.where(inside, order, inside.int().argmax(dim=1, keepdim=True))
        columns, inside, values = (of.gather(1, chosen) for of in (columns, inside, self.at_tokens))
        out.scatter_(1, columns, torch.where(inside, values.to(out.dtype), out.gather(1, columns)))


class Likeliest:
    """The k tokens with the largest logits of each row, from blocks of columns, and these logits: [R, k] each."""

    def __init__(self, k: int, num_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.logits = torch.full((num_rows, k), -torch.inf, dtype=dtype, device=device)
        self.tokens = torch.zeros(num_rows, k, dtype=torch.int64, device=device)

    def add(self, logits: torch.Tensor, first: int) -> None:
        """Adds a block of columns, of which the first is that of token `first`."""
        found, columns = logits.topk(min(self.logits.size(1), logits.size(1)))
        self._keep([self.logits, found.to(self.logits.dtype)], [self.tokens, columns + first])

    def gather(self, group: dist.ProcessGroup | None) -> None:
        """Keeps those of all ranks' columns. A collective."""
        if group is not None:
            pairs = []
            for values in (self.logits, self.tokens):
                pairs.append([torch.empty_like(values) for _ in range(dist.get_world_size(group))])
                dist.all_gather(pairs[-1], values, group=group)
            self._keep(*pairs)

    def _keep(self, logits: Sequence[torch.Tensor], tokens: Sequence[torch.Tensor]) -> None:
        self.logits, chosen = torch.cat([*logits], dim=1).topk(self.logits.size(1))
        self.tokens = torch.cat([*tokens], dim=1).gather(1, chosen)


def _columns(local: torch.Tensor, block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns column numbers that are all in the block, and which of them were."""
    return local.clamp(0, block.size(1) - 1), (local >= 0) & (local < block.size(1))
