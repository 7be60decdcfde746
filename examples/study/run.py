"""Makes the runs of the study (docs/study.md), some twelve hours of two cores; the same command goes on after a stop.

python -m examples.study.run                          # everything, two runs at a time, into runs/study
python -m examples.study.run --only staleness --seeds 2
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.study.grid import SWEEPS, Sweep

_RECIPES = "examples/study/recipes.py"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the first exit code that is not 0, and 0 if all runs are finished."""
    parser = argparse.ArgumentParser(prog="python -m examples.study.run", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"of {', '.join(SWEEPS)}")
    parser.add_argument("--seeds", type=int, default=99, help="at most so many seeds of each sweep")
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/study"))
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.only.split(",")] if options.only else list(SWEEPS)
    if unknown := [name for name in names if name not in SWEEPS]:
        parser.error(f"there is no sweep {unknown[0]!r}: choose of {', '.join(SWEEPS)}")
    for name in names:
        sweep = SWEEPS[name]
        seeds = min(sweep.seeds, options.seeds)
        warm = options.output / f"{sweep.recipe}-warm"
        start = command(f"{_RECIPES}:warm_{sweep.recipe}", warm, seeds, options.at_once)
        runs = command(
            f"{_RECIPES}:{sweep.recipe}",
            options.output / folder_name(name),
            seeds,
            options.at_once,
            *grid(sweep),
            "--start-from",
            str(warm / "seed={seed}"),
        )
        for one in (start, runs):
            if code := subprocess.run(one, check=False).returncode:
                return code
    return 0


def folder_name(sweep: str) -> str:
    """Returns the name of a sweep's folder."""
    return sweep.replace(",", "").replace(" ", "-")


def command(recipe: str, output: Path, seeds: int, at_once: int, *more: str) -> list[str]:
    """Returns the command line of a sweep."""
    line = [sys.executable, "-m", "megatron_sspo", "sweep", recipe, "--output", str(output)]
    return [*line, "--seeds", str(seeds), "--at-once", str(at_once), *more]


def grid(sweep: Sweep) -> list[str]:
    """Returns the arguments for the sweep's objectives, values of μ, learning rates and assignments."""
    objectives = ", ".join(f"{label!r}: {text}" for label, text in sweep.objectives.items())
    rates = ", ".join(f"{rate:.3g}" for rate in sweep.rates)
    varied = [
        f"objective={{{objectives}}}",
        f"updates_per_sync={list(sweep.updates_per_sync)}",
        f"optimizer.lr=[{rates}]",
    ]
    return [
        *(part for text in varied for part in ("--vary", text)),
        *(part for text in sweep.assignments for part in ("--set", text)),
    ]


if __name__ == "__main__":
    sys.exit(main())
