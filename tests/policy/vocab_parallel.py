"""Log-probs and entropy by the formula in float64, and the script that runs the fused head on two ranks.

python vocab_parallel.py RESULTS
"""

import sys
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE, HIDDEN, TEMPERATURE = 97, 16, 0.7
GRADIENTS = ("log-probs", "entropy", "both")


def naive(logits: torch.Tensor, labels: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    distribution = torch.log_softmax(logits / temperature, dim=1)
    entropy = -(distribution.exp() * distribution).sum(dim=1)
    return distribution.gather(1, labels[:, None])[:, 0], entropy


def inputs(num_rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Returns tensors by name. The weight is padded to the largest size used, with large values to show a leak."""
    generator = torch.Generator().manual_seed(num_rows)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    weight = normal(2 * VOCAB_SIZE, HIDDEN)
    weight[VOCAB_SIZE:] = 5
    labels = torch.randint(0, VOCAB_SIZE, (num_rows,), generator=generator)
    return {"hidden": normal(num_rows, HIDDEN), "weight": weight, "labels": labels, "g": normal(num_rows).double()}


def scalar(which: str, log_probs: torch.Tensor, entropy: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Returns a loss that gives g to the log-probs, to the entropies or, reversed, to both."""
    g = g.to(log_probs.dtype)
    by_log_probs, by_entropy = (log_probs * g).sum(), (entropy * g.flip(0)).sum()
    return {"log-probs": by_log_probs, "entropy": by_entropy, "both": by_log_probs + by_entropy}[which]


def expected(num_rows: int, which: str) -> dict[str, torch.Tensor]:
    """Returns values and gradients in float64, on one rank."""
    given = inputs(num_rows, torch.float64)
    hidden = given["hidden"].requires_grad_()
    weight = given["weight"][:VOCAB_SIZE].clone().requires_grad_()
    log_probs, entropy = naive(hidden @ weight.t(), given["labels"], TEMPERATURE)
    scalar(which, log_probs, entropy, given["g"]).backward()
    found = {"log_probs": log_probs, "entropy": entropy, "hidden.grad": hidden.grad, "weight.grad": weight.grad}
    return {name: tensor.detach() for name, tensor in found.items()}


def run_fused(
    num_rows: int,
    width: int,
    which: str,
    budget: int,
    rank: int,
    group: Any,
) -> dict[str, torch.Tensor]:
    """Runs the fused head on this rank's `width` rows of the weight."""
    from megatron_sspo.policy.head.fused import fused_log_probs_and_entropy

    given = inputs(num_rows, torch.float64)
    hidden = given["hidden"].requires_grad_()
    weight = given["weight"][rank * width : (rank + 1) * width].clone().requires_grad_()
    log_probs, entropy = fused_log_probs_and_entropy(
        hidden,
        weight,
        given["labels"],
        temperature=TEMPERATURE,
        vocab_size=VOCAB_SIZE,
        group=group,
        memory_budget_bytes=budget,
    )
    scalar(which, log_probs, entropy, given["g"]).backward()
    found = {"log_probs": log_probs, "entropy": entropy, "hidden.grad": hidden.grad, "weight.grad": weight.grad}
    return {name: tensor.detach() for name, tensor in found.items()}


# (rows, columns of a rank): ragged; a second rank with only padding; no rows
SHAPES = ((37, 49), (5, 97), (0, 49))
BUDGETS = {"recompute": 0, "save some": 10_000, "save": 1 << 30}


def main(results: Path) -> None:
    import torch.distributed as dist
    from launcher import join

    from megatron_sspo.policy.head import fused as fused_head

    join()
    fused_head.BLOCK["cpu"], fused_head.MIN_COLUMNS = 1, 16  # several blocks
    rank, group = dist.get_rank(), dist.group.WORLD
    found = {}
    for rows, width in SHAPES:
        for which in GRADIENTS:
            for mode, budget in BUDGETS.items():
                found[rows, which, mode] = run_fused(rows, width, which, budget, rank, group)
    torch.save(found, results / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
