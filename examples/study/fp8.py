"""Makes the runs of docs/fp8.md, some two minutes of a core each, and prints its table; it goes on after a stop.

python -m examples.study.fp8                       # two runs at a time, into runs/fp8
python -m examples.study.fp8 --only-table
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from examples.study.run import command
from sspo_lab.folder import is_sweep, read_sweep, status
from sspo_lab.results import area, read_curve

_RECIPES = "examples/study/recipes.py"
_FORMS = "objective={two-sided: sspo(), one-sided: sspo(Pessimistic(AtanLog(0.3, 0.2)))}"
_REMEDIES = ("--vary", "correction.mode=[none, truncated]", "--vary", "routing_replay=[none, R3]")
_FP8 = ("--set", 'rollouts.options={"quantize": "fp8"}')
SWEEPS = {
    "exact": ("--vary", _FORMS, "--vary", "updates_per_sync=[8, 2]"),
    "fp8-8": ("--vary", _FORMS, *_REMEDIES, "--set", "updates_per_sync=8", *_FP8),
    "fp8-2": ("--vary", "objective={two-sided: sspo()}", *_REMEDIES, "--set", "updates_per_sync=2", *_FP8),
    "fp8-ratio": ("--vary", _FORMS, "--set", "old_policy=rollout", "--set", "updates_per_sync=8", *_FP8),
}
MEASURES = ("engine/kl", "engine/log_prob_difference_mean", "engine/log_prob_difference_max")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the first exit code that is not 0, and 0 if all runs are finished."""
    parser = argparse.ArgumentParser(prog="python -m examples.study.fp8", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=2, help="number of runs at a time (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/fp8"))
    parser.add_argument("--only-table", action="store_true")
    options = parser.parse_args(arguments)
    warm, size = options.output / "warm", (options.seeds, options.at_once)
    lines = [command(f"{_RECIPES}:warm_sums", warm, *size)] + [
        command(f"{_RECIPES}:sums", options.output / name, *size, *varied, "--start-from", f"{warm}/seed={{seed}}")
        for name, varied in SWEEPS.items()
    ]
    for line in [] if options.only_table else lines:
        if code := subprocess.run(line, check=False).returncode:
            return code
    print(*(row for name in SWEEPS for row in rows_of(options.output / name)), sep="\n")
    return 0


def rows_of(folder: Path) -> Iterator[str]:
    """Yields a row of the table for each cell of a sweep, from its finished runs."""
    cells: dict[str, list[Path]] = {}
    for cell in read_sweep(folder).cells() if is_sweep(folder) else ():
        if status(folder / cell.name).state == "finished":
            cells.setdefault(cell.name.rpartition(",seed=")[0], []).append(folder / cell.name)
    for name, runs in cells.items():
        curves = [read_curve(run, "pass@1")[1] for run in runs]
        finals, areas = [curve[-1][1] for curve in curves], [area(curve) for curve in curves]
        yield (
            f"| {folder.name}: {name} | {_listed(finals)} | {_listed(areas)} | "
            + " | ".join(
                f"{_mean([_mean([value for _, value in read_curve(run, measure)[1]]) for run in runs]):.2g}"
                for measure in MEASURES
            )
            + " |"
        )


def _listed(values: Sequence[float]) -> str:
    return f"{_mean(values):.3f} ({', '.join(f'{value:.2f}' for value in values)})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
