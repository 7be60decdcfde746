"""Log-probs and entropy by the formula in float64, and the script that runs the fused head on two ranks.

python vocab_parallel.py RESULTS
"""

import sys
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE, HIDDEN, TEMPERATURE = 97, 16, 0.7
GRADIENTS = ("log-probs", "entropy", "both", "top", "all")
_WITH_TOP = ("top", "all")
TOP = 5  # given tokens of each row, with the label in every other row


def naive(
    logits: torch.Tensor, labels: torch.Tensor, temperature: float, top: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    distribution = torch.log_softmax(logits / temperature, dim=1)
    entropy = -(distribution.exp() * distribution).sum(dim=1)
    values = distribution.gather(1, labels[:, None])[:, 0], entropy
    if top is None:
        return values
    rest = distribution.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    return *values, torch.cat([distribution.gather(1, top), rest], dim=1)


def inputs(num_rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Returns tensors by name. The weight is padded to the largest size used, with large values to show a leak."""
    generator = torch.Generator().manual_seed(num_rows)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    weight = normal(2 * VOCAB_SIZE, HIDDEN)
    weight[VOCAB_SIZE:] = 5
    labels = torch.randint(0, VOCAB_SIZE, (num_rows,), generator=generator)
    given = {"hidden": normal(num_rows, HIDDEN), "weight": weight, "labels": labels, "g": normal(num_rows).double()}
    chosen = torch.rand(num_rows, VOCAB_SIZE, generator=generator)
    chosen[torch.arange(0, num_rows, 2), labels[::2]] = 2
    return {**given, "top": chosen.topk(TOP).indices}


def scalar(which: str, log_probs: torch.Tensor, entropy: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    """Returns a loss that gives g to the log-probs, reversed to the entropies, or multiples of it to the top's."""
    *of_top, g = more
    g = g.to(log_probs.dtype)
    terms = {"log-probs": (log_probs * g).sum(), "entropy": (entropy * g.flip(0)).sum()}
    for top in of_top:
        terms["top"] = (top * g[:, None] * torch.arange(-2, TOP - 1)).sum()
    wanted = {"both": ["log-probs", "entropy"], "all": terms}.get(which, [which])
    return torch.stack([terms[name] for name in wanted]).sum()


def expected(num_rows: int, which: str) -> dict[str, torch.Tensor]:
    """Returns values and gradients in float64, on one rank."""
    given = inputs(num_rows, torch.float64)
    hidden = given["hidden"].requires_grad_()
    weight = given["weight"][:VOCAB_SIZE].clone().requires_grad_()
    values = naive(hidden @ weight.t(), given["labels"], TEMPERATURE, given["top"] if which in _WITH_TOP else None)
    scalar(which, *values, given["g"]).backward()
    return _found(values, hidden, weight)


def _found(values: tuple[torch.Tensor, ...], hidden: torch.Tensor, weight: torch.Tensor) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(("log_probs", "entropy", "top"), values, strict=False))
    found |= {"hidden.grad": hidden.grad, "weight.grad": weight.grad}
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
    values = fused_log_probs_and_entropy(
        hidden,
        weight,
        given["labels"],
        temperature=TEMPERATURE,
        vocab_size=VOCAB_SIZE,
        group=group,
        memory_budget_bytes=budget,
        top_tokens=given["top"] if which in _WITH_TOP else None,
    )
    scalar(which, *values, given["g"]).backward()
    return _found(values, hidden, weight)


def run_likeliest(num_rows: int, width: int, k: int, rank: int, group: Any) -> tuple[torch.Tensor, ...]:
    """Runs the search of the likeliest tokens on this rank's `width` rows of the weight."""
    from megatron_sspo.policy.head.fused import likeliest

    given = inputs(num_rows, torch.float64)
    weight = given["weight"][rank * width : (rank + 1) * width]
    options: Any = {"temperature": TEMPERATURE, "vocab_size": VOCAB_SIZE, "group": group}
    return likeliest(given["hidden"], weight, given["labels"], k, **options)


def expected_likeliest(num_rows: int, k: int) -> tuple[torch.Tensor, ...]:
    """Returns what `run_likeliest` finds, by the formula."""
    given = inputs(num_rows, torch.float64)
    logits = given["hidden"] @ given["weight"][:VOCAB_SIZE].t()
    top = torch.log_softmax(logits / TEMPERATURE, dim=1).topk(min(k, VOCAB_SIZE))
    return *naive(logits, given["labels"], TEMPERATURE), top.values, top.indices


# (rows, columns of a rank): ragged; a second rank with only padding; no rows
SHAPES = ((37, 49), (5, 97), (0, 49))
LIKELIEST = (1, 40, 200)  # fewer and more than a block, and than the vocabulary, has tokens
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
        for k in LIKELIEST:
            found[rows, k] = run_likeliest(rows, width, k, rank, group)
    torch.save(found, results / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
