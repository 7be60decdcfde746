"""Compares log-probs and entropy, forward and backward, with a naive implementation and with installed peers.

    python benchmarks/log_probs.py                 # T = 512
    python benchmarks/log_probs.py --tokens 2048   # four times the memory of the first

It runs one thread with vocabulary 151,936, hidden size 2,048 and bfloat16. Times are CPU seconds of one forward and
backward pass; MB is the peak of memory above the inputs. "From logits" computes log-probs with a gradient, and entropy
as a metric. "With the output layer" starts from hidden states and the weight, and MB excludes the returned gradients.
The last columns are the largest errors of log-probs against float64: from float32 logits, or from bfloat16 operands.
Peers, which are left out if they are not installed: `pip install --no-deps liger-kernel==0.8.5 trl==1.16.0 triton
accelerate`.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from side_by_side import measure, print_table, run_all

from megatron_sspo.policy.head.log_probs import Gradient, Statistics

VOCABULARY, HIDDEN = 151_936, 2048
Values = tuple[torch.Tensor, torch.Tensor | None]


class FromLogits(torch.autograd.Function):
    """The head's arithmetic on given logits, which its gradient overwrites."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        ctx.set_materialize_grads(False)
        statistics = Statistics(len(logits), 1.0, logits)
        statistics.add(logits, labels)
        log_probs, entropy, log_normalizer = statistics.finish(None)
        ctx.save_for_backward(logits, labels, log_probs, entropy, log_normalizer)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, grad_log_probs: Any, grad_entropy: Any) -> Any:  # pyright: ignore
        logits, labels, *of_rows = ctx.saved_tensors
        Gradient(grad_log_probs, grad_entropy, *of_rows, temperature=1.0).write(logits, labels, out=logits)
        return logits, None


def ours(logits: torch.Tensor, labels: torch.Tensor) -> Values:
    return FromLogits.apply(logits, labels)  # pyright: ignore


def naive(logits: torch.Tensor, labels: torch.Tensor) -> Values:
    distribution = torch.log_softmax(logits.float() if logits.dtype == torch.bfloat16 else logits, dim=-1)
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(dim=-1)
    return distribution.gather(1, labels[:, None])[:, 0], entropy


def megatron(logits: torch.Tensor, labels: torch.Tensor) -> Values:
    """Computes log-probs with Megatron's own function, which has no entropy."""
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    return -vocab_parallel_cross_entropy(logits, labels), None


def trl(logits: torch.Tensor, labels: torch.Tensor) -> Values:
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax  # pyright: ignore

    with torch.no_grad():
        entropy = entropy_from_logits(logits)
    return selective_log_softmax(logits, labels), entropy


def ours_recompute(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, budget: int = 0) -> Values:
    from megatron_sspo.policy.head.fused import fused_log_probs_and_entropy

    options = {"temperature": 1.0, "vocab_size": VOCABULARY, "memory_budget_bytes": budget}
    return fused_log_probs_and_entropy(hidden, weight, labels, **options)  # pyright: ignore


def ours_save(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Values:
    return ours_recompute(hidden, weight, labels, budget=1 << 40)


def ours_save_some(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Values:
    return ours_recompute(hidden, weight, labels, budget=68_000_000)


def naive_head(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Values:
    return naive(hidden @ weight.t(), labels)


def liger(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Values:
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import (  # pyright: ignore
        LigerFusedLinearScaledCrossEntropyFunction,
    )

    loss, entropy = LigerFusedLinearScaledCrossEntropyFunction.apply(hidden, weight, labels, 1.0, -100, 1, True)
    return -loss, entropy


def liger_without_entropy(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Values:
    """Computes the sum of log-probs with Liger's usual layer, whose kernels need a GPU."""
    from liger_kernel.ops.fused_linear_cross_entropy import (  # pyright: ignore
        LigerFusedLinearCrossEntropyFunction,
    )

    options = {"bias": None, "ce_weight": None, "ignore_index": -100, "lse_square_scale": 0.0, "label_smoothing": 0.0}
    return -LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, labels, *options.values(), "sum")[0], None


FROM_LOGITS: dict[str, Callable[..., Values]] = {
    "ours": ours,
    "naive log_softmax": naive,
    "megatron (no entropy)": megatron,
    "trl": trl,
}
WITH_HEAD: dict[str, Callable[..., Values]] = {
    "ours, recompute": ours_recompute,
    "ours, save 68 MB": ours_save_some,
    "ours, save": ours_save,
    "naive, logits in memory": naive_head,
    "liger (its fallback)": liger,
}


def measure_logits(function: Callable[..., Values], tokens: int, repetitions: int) -> dict[str, float]:
    exact = torch.randn(tokens, VOCABULARY, generator=torch.Generator().manual_seed(0)).mul_(3)
    labels = torch.arange(tokens) * 37 % VOCABULARY
    few = exact[:32]
    found = function(few.clone(), labels[:32])[0].double()
    error = float((found - torch.log_softmax(few.double(), dim=-1).gather(1, labels[:32, None])[:, 0]).abs().max())
    logits = exact.bfloat16()
    del exact, few
    upstream = torch.ones(tokens)

    def work() -> None:
        # The logits of a model are an intermediate result and may be overwritten: ours stores the gradient in them. The
        # next repetition starts from these values, which does not change the times.
        part = logits.requires_grad_().view_as(logits)
        values = function(part, labels)[0]
        torch.autograd.grad(values, part, upstream.to(values.dtype))

    return {**measure(work, repetitions=repetitions), "error (f32 logits)": error}


def measure_head(function: Callable[..., Values], tokens: int, repetitions: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, HIDDEN, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator).mul_(3 / HIDDEN**0.5).bfloat16().requires_grad_()
    labels = torch.arange(tokens) * 37 % VOCABULARY
    with torch.no_grad():
        logits = F.linear(hidden[:32].float(), weight.float()).double()
        expected = torch.log_softmax(logits, dim=-1).gather(1, labels[:32, None])[:, 0]
        found = function(hidden[:32], weight, labels[:32])[0].double()
    error = float((found - expected).abs().max())
    del logits

    def work() -> None:
        torch.autograd.grad(function(hidden, weight, labels)[0].sum(), (hidden, weight))

    found = measure(work, repetitions=repetitions)
    returned = (hidden.numel() + weight.numel()) * 2 / 1e6
    return {**found, "megabytes": found["megabytes"] - returned, "error (bf16 operands)": error}


def one_rank() -> None:
    """Initializes Megatron's process groups for one rank; its functions need them."""
    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.run import Parallel

    initialize(Parallel(), seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options: Any = parser.parse_args()
    if options.variant:
        torch.set_num_threads(1)
        if options.variant.startswith("megatron"):
            one_rank()
        measured = (
            measure_logits(FROM_LOGITS[options.variant], options.tokens, 3)
            if options.variant in FROM_LOGITS
            else measure_head(WITH_HEAD[options.variant], options.tokens, 2)
        )
        print(json.dumps(measured))
        return
    arguments = ["--tokens", str(options.tokens)]
    for title, variants, baseline in (
        ("from logits", FROM_LOGITS, "naive log_softmax"),
        ("with the output layer", WITH_HEAD, "liger (its fallback)"),
    ):
        results = run_all(__file__, list(variants), arguments, rounds=options.rounds)
        print_table(f"{title}, T = {options.tokens}, time relative to {baseline}", results, baseline)


if __name__ == "__main__":
    main()
