"""Prints the table of slurm/README.md: the memory per GPU of each of the paper's models, by layout.

    python tools/memory_table.py

For your own model, `megatron-sspo launch RECIPE --check` prints the same numbers for the recipe's layout.
"""

from typing import Any

from megatron_sspo.memory.estimate import estimate, host_memory
from megatron_sspo.memory.parameters import count_all
from megatron_sspo.paper import RECOMPUTE
from megatron_sspo.recipe import load_recipe
from megatron_sspo.run import Model, Parallel, Prompts, Rollouts, Run
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


# (model, recipe, remark): the rows of a single node
ONE_NODE = [
    ("Qwen3-30B-A3B", "examples/qwen3_30b_a3b_one_node.py", "**`--nodes=1`**: optimizer on the host, in turns"),
    ("Qwen3-30B-A3B", "examples/qwen3_30b_a3b_lora.py", "four GPUs: adapters, in turns"),
]


def run_of(parallel: Parallel, *, recompute: bool) -> Run:
    """Returns a run with the paper's microbatches of 16,384 tokens."""
    return Run(
        name="table",
        model=Model(path="", dtype="bfloat16"),
        prompts=Prompts(source=""),
        num_updates=1,
        parallel=parallel,
        rollouts=Rollouts(engine="sglang"),
        megatron=RECOMPUTE if recompute else {},
    )


def table() -> str:
    """Returns the table in Markdown; sizes are in GB (10⁹ bytes) of the largest pipeline stage."""
    heads = ["model", "P, E in 10⁹", "layout (GPUs)", "again", "weights", "gradients", "optimizer", "activations"]
    heads += ["layer or logits", "CUDA, NCCL", "sum", "host", ""]
    lines = [heads, ["---"] * len(heads)]
    of_layouts = [(model, run_of(parallel, recompute=again), remark) for model, parallel, again, remark in ROWS]
    for model, run, remark in of_layouts + [(model, load_recipe(path), remark) for model, path, remark in ONE_NODE]:
        config, parallel = MODELS[model], run.parallel
        found = max(estimate(run, config, on_cuda=True), key=lambda stage: stage.total)
        count = count_all(config)
        names = [name for name in ("data", "tensor", "pipeline", "expert") if getattr(parallel, name) > 1]
        layout = ", ".join(f"{name} {getattr(parallel, name)}" for name in names)
        sizes = (found.weights, found.gradients, found.optimizer, found.activations, max(found.layer, found.logits))
        total = f"{found.total / 1e9:.0f}"
        lines.append([
            model,
            f"{count.dense / 1e9:.2f}, " + (f"{count.experts / 1e9:.2f}" if count.experts else "–"),
            f"{layout} ({parallel.num_processes})",
            "yes" if run.megatron else "no",
            *(f"{size / 1e9:.1f}" for size in sizes),
            f"{found.allowance / 1e9:.0f}",
            total if found.total / 1e9 > CARD else f"**{total}**",
            f"{host_memory(run, config).of_host(min(8, parallel.num_processes)) / 1e9:.0f}",
            remark,
        ])  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(table())
