"""The report of `megatron-sspo launch --check`: the layout, and the memory of each rank and each server."""

from collections.abc import Mapping, Sequence
from typing import Any

from megatron_sspo.memory.estimate import MemoryEstimate, checkpoint_bytes, estimate, host_memory, server_memory
from megatron_sspo.run import Run


def report(run: Run, config: Mapping[str, Any], *, on_cuda: bool) -> str:
    """Returns the report's text; sizes are in GB (10⁹ bytes)."""
    number = run.parallel.num_processes
    ranks = f"{number} ranks ({run.parallel.describe()})" if number > 1 else "1 rank"
    lines = [
        f"{run.name}: {ranks}, {run.tokens_per_microbatch} tokens a microbatch, {'GPUs' if on_cuda else 'CPUs'}",
        *table(estimate(run, config, on_cuda=on_cuda)),
        f"a checkpoint takes {_gb(checkpoint_bytes(run, config))} GB",
        host_memory(run, config).describe(number),
    ]
    if "pipeline_model_parallel_layout" in run.megatron:
        lines.append(
            "these stages have equally many layers: megatron.pipeline_model_parallel_layout is not followed, and a "
            "stage to which it gives more layers needs more"
        )
    if run.rollouts.engine == "sglang":
        tp_size = (run.rollouts.options.get("server") or {}).get("tp_size", 1)
        of_server = server_memory(run, config)
        lines.append(
            f"a server's GPU holds {_gb(of_server.weights)} GB of weights at tp_size {tp_size}, and "
            f"{of_server.cache_per_token / 1024:.0f} KiB of key-value cache a token"
        )
    return "\n".join(lines)


def table(stages: Sequence[MemoryEstimate]) -> list[str]:
    """Returns a line per pipeline stage. The sum has the larger of `layer` and `logits`, which do not exist at once."""
    used = [name for name in vars(stages[0]) if any(getattr(stage, name) for stage in stages)]
    heads = ["GB a rank", *used, "sum"]
    rows = [
        [f"stage {number}", *(_gb(getattr(stage, name)) for name in used), _gb(stage.total)]
        for number, stage in enumerate(stages, start=1)
    ]
    widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [heads, *rows]]


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}" if size >= 1e8 else f"{size / 1e9:.3f}"
