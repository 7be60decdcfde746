"""Rehearses the recipes and layouts of docs/full_size.md at full size, and prints its tables.

    python -m tools.full_size                  rehearses what docs/full_size.json lacks, one after the other
    python -m tools.full_size --tables         prints the tables of what is there

Each row is one command, which is printed and kept with its result.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megatron_sspo.files.reading import read_json
from megatron_sspo.files.writing import write_atomically
from megatron_sspo.memory.estimate import MemoryEstimate, estimate
from megatron_sspo.recipe import load_recipe
from megatron_sspo.run import Parallel
from sspo_rehearsal.batch import rehearsed_run, workload
from sspo_rehearsal.sizes import find_config
from tools.memory_table import ROWS

RESULTS = Path(__file__).parents[1] / "docs" / "full_size.json"
RECIPES = {
    "Qwen2.5-7B": "examples/qwen2_5_7b_math.py",
    "Qwen3-8B": "examples/qwen3_8b_math.py",
    "Qwen3-14B": "examples/qwen3_14b_math.py",
    "Qwen3-30B-A3B": "examples/qwen3_30b_a3b_math.py",
}
LONG = (
    *("tokens_per_microbatch=8192", "prompts.max_tokens=256", "rollouts.sampling.max_tokens=3840"),
    "megatron={}",
)
_NOT_TERMS = {"update", "old_log_probs", "gather", "tokens_per_second_and_gpu", "model_flops_utilisation"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A rehearsal: a recipe, what is changed of it, and the table that it belongs to."""

    table: str
    recipe: str
    changes: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The arguments of `megatron-sspo launch`."""
        return [self.recipe, *(part for change in self.changes for part in ("--set", change)), "--rehearse"]


def rows() -> Iterator[Row]:
    """Yields the rows: the recipes, the layouts of slurm/README.md, and four sizes of cluster."""
    names = ("gpt_oss*.py", "qwen*.py")
    for path in sorted(path for name in names for path in Path("examples").glob(name)):
        yield Row(table="recipes", recipe=str(path))
    for model, parallel, recompute, _ in ROWS:
        changes = [*_layout(parallel), *([] if recompute else ["megatron={}"])]
        yield Row(table="layouts", recipe=RECIPES[model], changes=tuple(changes))
    for parallel, batch in (
        (Parallel(data=8, expert=8), 64),
        (Parallel(data=8, tensor=2, sequence=True, pipeline=2, expert=8), 64),
        (Parallel(data=32, tensor=2, sequence=True, pipeline=4, expert=16), 256),
        (Parallel(data=64, tensor=2, sequence=True, pipeline=4, context=2, expert=8), 256),
    ):
        changes = (*_layout(parallel), *LONG, f"rollouts.prompts_per_update={batch}")
        yield Row(table="clusters", recipe=RECIPES["Qwen3-30B-A3B"], changes=changes)


def _layout(parallel: Parallel) -> list[str]:
    return [f"parallel.{name}={value}" for name, value in asdict(parallel).items()]


def rehearse(row: Row) -> dict[str, Any]:
    """Runs a row's command and returns what the document needs of its result."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rehearsal.json"
        command = [sys.executable, "-W", "ignore", "-m", "megatron_sspo", "launch", *row.arguments]
        subprocess.run([*command, "--output", str(output)], check=True)
        found = read_json(output)
    run = load_recipe(row.recipe, row.changes)
    config, _ = find_config(run.model.path)
    # for the microbatches that were rehearsed
    estimates = estimate(rehearsed_run(run, workload(run)), config, on_cuda=False)
    return {
        **asdict(row),
        "name": found["name"],
        "parallel": found["parallel"],
        "workload": found["workload"],
        "prediction": found["prediction"],
        "warnings": found["warnings"],
        "phases": found["phases"],
        "stages": [
            {
                "resident": stage["resident"],
                "host": stage["host"],
                "peaks": {part: peak for part, peak in stage["peaks"].items() if part != "checkpoint"},  # on hosts
                "flops": stage["flops"],
                "seconds": sum(stage["seconds"].values()),
                "estimate": _estimated(estimates[number]),
            }
            for number, stage in enumerate(found["stages"])
        ],
    }


def _is(row: Row, result: Mapping[str, Any]) -> bool:
    return (row.table, row.recipe, row.changes) == (result["table"], result["recipe"], tuple(result["changes"]))


def _estimated(of_stage: MemoryEstimate) -> dict[str, int]:
    static = of_stage.weights + of_stage.gradients + of_stage.optimizer
    return {"resident": static, "update": static + of_stage.activations + max(of_stage.layer, of_stage.logits)}


def tables(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns the tables in Markdown; sizes are in GB (10⁹ bytes) of the stage that needs most."""
    lines = []
    for table in dict.fromkeys(result["table"] for result in results):
        heads = ["", "GPUs", "layout", "between updates", "peak", "estimate", "seconds", "largest term", "MFU"]
        lines += ["", f"### {table}", "", _line(heads), _line(["---"] * len(heads))]
        lines += [_line(_cells(result)) for result in results if result["table"] == table]
    for result in results:
        in_turns = [phase for phase in result.get("phases", ()) if phase["server"]]
        lines += [*_phases(result)] if in_turns else []
    return "\n".join(lines)


def _phases(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of the phases of a cycle; the trainer's part has the allowance for CUDA and NCCL."""
    phases = result["phases"]
    yield from ("", f"### {result['name']}, in turns with servers", "")
    yield from (_line(["", *(phase["name"] for phase in phases)]), _line(["---"] * (1 + len(phases))))
    for title, of in (("trainer", ("trainer",)), ("server", ("server",)), ("sum", ("trainer", "server"))):
        yield _line([title, *(f"{sum(phase[part] for part in of) / 1e9:.1f}" for phase in phases)])


def _cells(result: Mapping[str, Any]) -> list[str]:
    stages, parallel, predicted = result["stages"], result["parallel"], result["prediction"]
    worst = max(stages, key=_peak)
    peak = _peak(worst)
    terms = {name: seconds for name, seconds in predicted.items() if name not in _NOT_TERMS}
    names = ("data", "tensor", "pipeline", "virtual_pipeline", "context", "expert")
    layout = ", ".join(f"{name} {parallel[name]}" for name in names if parallel[name] > 1)
    gpus = parallel["data"] * parallel["tensor"] * parallel["pipeline"] * parallel["context"]
    recomputed = not any("megatron={}" in change for change in result["changes"])
    return [
        result["name"],
        str(gpus),
        layout + (", again" if recomputed else ""),
        f"{sum(worst['resident'].values()) / 1e9:.1f}",
        f"{peak / 1e9:.1f}",
        f"{worst['estimate']['update'] / 1e9:.1f}",
        f"{predicted['update']:.1f}",
        max(terms, key=lambda name: terms[name]),
        f"{predicted['model_flops_utilisation']:.0%}",
    ]


def _peak(stage: Mapping[str, Any]) -> int:
    return max(sum(peak.values()) for peak in stage["peaks"].values())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Rehearses what is missing, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="rehearse nothing")
    options = parser.parse_args()
    results: list[dict[str, Any]] = read_json(RESULTS)["rows"] if RESULTS.exists() else []
    order = {(row.table, row.recipe, row.changes): number for number, row in enumerate(rows())}
    missing = [] if options.tables else [row for row in rows() if not any(_is(row, result) for result in results)]
    for row in missing:
        print("megatron-sspo launch", *row.arguments, flush=True)
        results.append(rehearse(row))
        results.sort(key=lambda found: order[found["table"], found["recipe"], tuple(found["changes"])])
        write_atomically(RESULTS, json.dumps({"rows": results}, indent=1))
    print(tables(results))


if __name__ == "__main__":
    main()
