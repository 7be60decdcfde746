"""Prints the table of slurm/README.md: the memory per GPU of each of the paper's models, by layout.

    python tools/memory_table.py

For your own model, `megatron-sspo launch RECIPE --check` prints the same numbers for the recipe's layout.
"""

from collections.abc import Mapping
from typing import Any

from megatron_sspo.memory.estimate import MemoryEstimate, estimate
from megatron_sspo.memory.parameters import count_all
from megatron_sspo.paper import RECOMPUTE
from megatron_sspo.run import Model, Parallel, Prompts, Rollouts, Run
from megatron_sspo.weights.family import load_family
from sspo_rehearsal.sizes import find_config

CARD = 80.0  # GB

# The content of their config.json.
MODELS: dict[str, dict[str, Any]] = {
    "Qwen2.5-7B": find_config("Qwen2.5-7B-Instruct")[0],
    **{name: find_config(name)[0] for name in ("Qwen3-8B", "Qwen3-14B", "Qwen3-30B-A3B")},
}

# (model, layout, whether activations are recomputed, remark)
ROWS: list[tuple[str, Parallel, bool, str]] = [
    ("Qwen2.5-7B", Parallel(data=4, tensor=2, sequence=True), True, "`--nodes=2`, or one, colocated"),
    ("Qwen3-8B", Parallel(data=4, tensor=2, sequence=True), True, "`--nodes=2`, or one, colocated"),
    ("Qwen3-14B", Parallel(data=2, tensor=4, sequence=True), True, "`--nodes=2`"),
    ("Qwen3-30B-A3B", Parallel(data=8, expert=8), True, "does not fit"),
    ("Qwen3-30B-A3B", Parallel(data=16, expert=8), False, "does not fit"),
    ("Qwen3-30B-A3B", Parallel(data=16, expert=8), True, "**`--nodes=3`: one generates**"),
    ("Qwen3-30B-A3B", Parallel(data=8, tensor=2, sequence=True, expert=8), True, "`--nodes=3`"),
    ("Qwen3-30B-A3B", Parallel(data=8, pipeline=2, expert=8), True, "`--nodes=3`; the first stage"),
    ("Qwen3-30B-A3B", Parallel(data=32, expert=8), True, "`--nodes=6 SERVER_NODES=2`"),
]


def largest(config: Mapping[str, Any], parallel: Parallel, *, recompute: bool) -> MemoryEstimate:
    """Returns the estimate of the largest pipeline stage on GPUs, with the paper's microbatches of 16,384 tokens."""
    run = Run(
        name="table",
        model=Model(path="", dtype="bfloat16"),
        prompts=Prompts(source=""),
        num_updates=1,
        parallel=parallel,
        rollouts=Rollouts(engine="sglang"),
        megatron=RECOMPUTE if recompute else {},
    )
    return max(estimate(run, config, on_cuda=True), key=lambda stage: stage.total)


def table() -> str:
    """Returns the table in Markdown; sizes are in GB (10⁹ bytes)."""
    heads = ["model", "P, E in 10⁹", "layout (GPUs)", "again", "weights", "gradients", "optimizer", "activations"]
    heads += ["layer or logits", "CUDA, NCCL", "sum", ""]
    lines = [heads, ["---"] * len(heads)]
    for model, parallel, recompute, remark in ROWS:
        found, count = largest(MODELS[model], parallel, recompute=recompute), count_all(*_family(model))
        names = [name for name in ("data", "tensor", "pipeline", "expert") if getattr(parallel, name) > 1]
        layout = ", ".join(f"{name} {getattr(parallel, name)}" for name in names)
        sizes = (found.weights, found.gradients, found.optimizer, found.activations, max(found.layer, found.logits))
        total = f"{found.total / 1e9:.0f}"
        lines.append([
            model,
            f"{count.dense / 1e9:.2f}, " + (f"{count.experts / 1e9:.2f}" if count.experts else "–"),
            f"{layout} ({parallel.num_processes})",
            "yes" if recompute else "no",
            *(f"{size / 1e9:.1f}" for size in sizes),
            f"{found.allowance / 1e9:.0f}",
            total if found.total / 1e9 > CARD else f"**{total}**",
            remark,
        ])  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _family(model: str) -> tuple[Any, dict[str, Any]]:
    return load_family(MODELS[model]), MODELS[model]


if __name__ == "__main__":
    print(table())
