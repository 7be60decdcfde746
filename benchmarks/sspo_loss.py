"""Compares the SSPO loss and token weights of a microbatch, forward and backward, with a loop over sequences.

    python benchmarks/sspo_loss.py

It uses 131,072 response tokens, one thread and float32. Times are CPU seconds, the median of the rounds.
"""

import argparse
import json
from typing import Any

import torch
from side_by_side import measure, print_table, run_all

from megatron_sspo.objective import AtanLog, Segments, sspo

TOKENS = 131_072


def loop(
    log_probs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, lengths: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns −Σ_i Â_i exp(mean_t log f(ρ_it)) and the token weights for the metrics, one sequence at a time."""
    gate, total, weights = AtanLog(), torch.zeros(()), []
    parts = zip(log_probs.split(lengths), old.split(lengths), advantages, strict=True)
    for new, before, advantage in parts:
        log_ratio, advantage_of_token = new - before, advantage.expand_as(new)
        total = total - advantage * gate.log_gate(log_ratio, advantage_of_token).mean().exp()
        weights.append(gate.weight(log_ratio.detach(), advantage_of_token))
    return total, torch.cat(weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options: Any = parser.parse_args()
    variants = [f"{name}, {count} sequences" for count in (64, 1024, 8192) for name in ("ours", "loop")]
    if not options.variant:
        results = run_all(__file__, variants, [], rounds=options.rounds)
        for count in (64, 1024, 8192):
            chosen = {name: row for name, row in results.items() if f", {count} " in name}
            print_table(f"{TOKENS:,} tokens in {count} sequences", chosen, f"loop, {count} sequences")
        return
    torch.set_num_threads(1)
    count = int(options.variant.split()[1])
    generator = torch.Generator().manual_seed(0)
    lengths = [TOKENS // count] * count
    old = -torch.rand(TOKENS, generator=generator)
    log_probs = (old + 0.1 * torch.randn(TOKENS, generator=generator)).requires_grad_()
    advantages = torch.randn(count, generator=generator)
    segments, objective = Segments.from_lengths(lengths), sspo()

    def work() -> None:
        if options.variant.startswith("ours"):
            loss = objective(log_probs, old, advantages, segments).loss
        else:
            loss, _ = loop(log_probs, old, advantages, lengths)
        torch.autograd.grad(loss, log_probs)

    work()
    print(json.dumps(measure(work, repetitions=10)))


if __name__ == "__main__":
    main()
