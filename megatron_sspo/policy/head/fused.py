"""Token log-probs and entropy from hidden states and the output weight, without all logits in memory at once.

The outer loop is over the vocabulary, so each block of the weight is read once per pass, and its gradient is written
once.
"""

from typing import Any

import torch
import torch.distributed as dist

from megatron_sspo.memory.head import BLOCK, MEMORY_BUDGET_BYTES, MIN_COLUMNS, block_width
from megatron_sspo.policy.head.log_probs import Gradient, Statistics, columns_of_rank
from megatron_sspo.policy.head.top import Likeliest, TopGradient, TopTokens

# since torch 2.8; before, operands are converted: the same numbers, for more time and memory
_HAS_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()


class FusedHead(torch.autograd.Function):
    """The autograd function of `fused_log_probs_and_entropy`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Any,
        weight: Any,
        labels: Any,
        temperature: float,
        vocab_size: int,
        group: Any,
        keep_bytes: int,
        grad_placeholder: bool,
        top_tokens: Any,
    ) -> Any:
        ctx.set_materialize_grads(False)
        first, valid = columns_of_rank(weight.size(0), vocab_size, group)
        local = labels - first
        statistics = Statistics(hidden.size(0), temperature, hidden)
        top = None if top_tokens is None else TopTokens(top_tokens, statistics.values.dtype)
        blocks = _blocks(hidden, valid)
        ctx.kept = {}  # block -> its logits
        first_kept = _first_kept(hidden, blocks, keep_bytes)
        for number, columns in enumerate(blocks):
            logits = _matmul(hidden, weight[columns].t())
            statistics.add(logits, local - columns.start)
            if top is not None:
                top.look_up(logits, first + columns.start)
            if number >= first_kept:
                ctx.kept[number] = logits
            del logits  # otherwise two blocks would be in memory while the next is computed
        log_probs, entropy, log_normalizer = statistics.finish(group)
        of_top = None if top is None else top.finish(log_normalizer, temperature, group)
        ctx.save_for_backward(hidden, weight, local, log_probs, entropy, log_normalizer, top_tokens, of_top)
        ctx.first = first
        ctx.temperature, ctx.valid, ctx.grad_placeholder = temperature, valid, grad_placeholder
        ctx.blocks, ctx.first_kept = blocks, first_kept
        return log_probs, entropy, of_top

    @staticmethod
    def backward(ctx: Any, grad_log_probs: Any, grad_entropy: Any, grad_top: Any) -> Any:  # pyright: ignore
        hidden, weight, local, log_probs, entropy, log_normalizer, top_tokens, of_top = ctx.saved_tensors
        gradient = Gradient(grad_log_probs, grad_entropy, log_probs, entropy, log_normalizer, ctx.temperature)
        top = None
        if grad_top is not None:
            top_tokens = top_tokens - ctx.first
            top = TopGradient(gradient, grad_top, of_top, log_probs, top_tokens == local[:, None])
        grad_hidden = torch.zeros_like(hidden, dtype=entropy.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = _WeightGradient(weight, ctx.valid, ctx.grad_placeholder) if ctx.needs_input_grad[1] else None
        if len(ctx.kept) != len(ctx.blocks) - ctx.first_kept:
            raise RuntimeError("the backward pass overwrote the logits it kept: it cannot be run again")
        for number, columns in reversed(list(enumerate(ctx.blocks))):
            logits = ctx.kept.pop(number) if number >= ctx.first_kept else _matmul(hidden, weight[columns].t())
            grad_logits = logits if logits.dtype == hidden.dtype else torch.empty_like(logits, dtype=hidden.dtype)
            gradient.write(logits, local - columns.start, out=grad_logits)
            if top is not None:
                top.write(top_tokens - columns.start, out=grad_logits)
            if grad_hidden is not None:
                _add_matmul(grad_hidden, grad_logits, weight[columns])
            if grad_weight is not None:
                grad_weight.write(columns, grad_logits.t(), hidden)
            del logits, grad_logits
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.returned,
            *(None,) * 7,
        )


def fused_log_probs_and_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float,
    vocab_size: int,
    group: dist.ProcessGroup | None = None,
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    grad_placeholder: bool = False,
    head: type[FusedHead] = FusedHead,
    top_tokens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Returns log π(label) and the entropy of π = softmax(hidden weightᵀ / temperature), row by row.

    On a GPU logits are in float32 for every dtype of the operands. On a CPU, whose matrix product has no wider output,
    logits of bfloat16 operands are rounded to bfloat16, as in Megatron's own output layer on both devices. All that
    follows is in float32. The operands of the gradient's matrix products have the dtype of `hidden`.

    If the weight has a `main_grad` and Megatron's `grad_added_to_main_grad`, its gradient is added there directly, not
    through `weight.grad`.

    Args:
        hidden: [R, H], the same on every rank of the group. Its gradient is this rank's share, to be summed over the
            group, as the backward passes of Megatron's `copy_to_tensor_model_parallel_region` and
            `gather_from_sequence_parallel_region` do.
        weight: [V/TP, H], this rank's rows of the padded vocabulary, in the dtype of `hidden`.
        labels: [R] int64, global token ids.
        vocab_size: V without padding; columns beyond it have probability 0.
        group: the tensor-parallel group; None for a whole vocabulary. Every rank of it has to call this with the same
            R, even if R is 0.
        memory_budget_bytes: the bytes of logits that are kept for the backward pass, in whole blocks; other blocks are
            computed again. The backward pass overwrites kept logits, so it can run only once.
        grad_placeholder: whether to return zeros for `weight.grad` beside the gradient in `main_grad`. Megatron's DDP
            needs them if it overlaps the reduction of gradients with the backward pass.
        top_tokens: [R, k] int64, global token ids that differ within a row.

    Returns:
        [R] float32 each (float64 from float64 operands): log-probs and entropies, both differentiable. With
        `top_tokens` also their log-probs and that of all other tokens together, [R, k + 1], differentiable, too.

    Raises:
        ValueError: `hidden` and `weight` have different dtypes.
    """
    if hidden.dtype != weight.dtype:
        raise ValueError(f"hidden is {hidden.dtype} and weight {weight.dtype}: convert one of them")
    backward_follows = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    keep_bytes = memory_budget_bytes if backward_follows else 0
    *values, of_top = head.apply(  # pyright: ignore
        hidden, weight, labels, temperature, vocab_size, group, keep_bytes, grad_placeholder, top_tokens
    )
    return (*values,) if of_top is None else (*values, of_top)


@torch.no_grad()
def likeliest(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    k: int,
    *,
    temperature: float,
    vocab_size: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, ...]:
    """Returns log-probs and entropies [R], and the log-probs and ids of the k likeliest tokens, [R, k] each.

    They are the likeliest first, and all tokens if the vocabulary has fewer. Arguments as in
    `fused_log_probs_and_entropy`; there is no gradient.
    """
    first, valid = columns_of_rank(weight.size(0), vocab_size, group)
    statistics = Statistics(hidden.size(0), temperature, hidden)
    best = Likeliest(min(k, vocab_size), hidden.size(0), statistics.values.dtype, hidden.device)
    for columns in _blocks(hidden, valid):
        logits = _matmul(hidden, weight[columns].t())
        statistics.add(logits, labels - first - columns.start)
        best.add(logits, first + columns.start)
        del logits
    log_probs, entropy, log_normalizer = statistics.finish(group)
    best.gather(group)
    return log_probs, entropy, (best.logits - log_normalizer[:, None]) / temperature, best.tokens


class _WeightGradient:
    """The destination of the blocks of dL/dweight: `main_grad`, or a tensor that autograd takes."""

    def __init__(self, weight: Any, valid: int, placeholder: bool) -> None:
        self.main_grad: torch.Tensor | None = None
        self.returned: torch.Tensor | None = None
        if hasattr(weight, "main_grad") and hasattr(weight, "grad_added_to_main_grad"):
            self.main_grad = weight.main_grad
            # Megatron's DDP then ignores weight.grad. If an embedding shares the weight, Megatron has set
            # `zero_out_wgrad`, and DDP adds the embedding's share.
            weight.grad_added_to_main_grad = True
            self.returned = torch.zeros_like(weight) if placeholder else None
        else:
            self.returned = torch.empty_like(weight)
            self.returned[valid:] = 0

    def write(self, rows: slice, left: torch.Tensor, right: torch.Tensor) -> None:
        if self.main_grad is not None:
            _add_matmul(self.main_grad[rows], left, right)
        elif self.returned is not None:
            torch.mm(left, right, out=self.returned[rows])


def _blocks(hidden: torch.Tensor, valid: int) -> list[slice]:
    width = block_width(hidden.size(0), BLOCK.get(hidden.device.type, BLOCK["cuda"]), MIN_COLUMNS)
    return [slice(start, min(start + width, valid)) for start in range(0, valid, width)]


def _first_kept(hidden: torch.Tensor, blocks: list[slice], keep_bytes: int) -> int:
    """Returns the number of the first block that is kept.

    The last blocks are kept and used first, because one of them is in memory anyway when the forward pass ends.
    """
    for number, columns in reversed(list(enumerate(blocks))):
        keep_bytes -= hidden.size(0) * (columns.stop - columns.start) * _matmul_dtype(hidden).itemsize
        if keep_bytes < 0:
            return number + 1
    return 0


def _matmul_dtype(operand: torch.Tensor) -> torch.dtype:
    """Returns the dtype of a product: on CUDA float32 for half-precision operands, so that it is not rounded."""
    return torch.float32 if operand.is_cuda and operand.dtype.itemsize == 2 else operand.dtype


def _matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    dtype = _matmul_dtype(left)
    if dtype == left.dtype:
        return torch.mm(left, right)
    if _HAS_OUT_DTYPE:
        return torch.mm(left, right, out_dtype=dtype)
    return torch.mm(left.to(dtype), right.to(dtype))


def _add_matmul(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(_matmul(left, right))
