"""Makes the runs of the study (docs/study.md), some twelve hours of two cores; the same command goes on after a stop.

python -m examples.study.run                          # everything, two runs at a time, into runs/study
python -m examples.study.run --only staleness --seeds 2
python -m examples.study.run --only staleness,mild,gates --seed-by-seed    # what is stopped has whole seeds
python -m examples.study.run --only "search long sums,long sums"
python -m examples.study.run --only staleness --objective AtanLog --seeds 4 --output runs/again    # cells made again
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from examples.study.grid import SEARCHES, SWEEPS, Sweep, folder_name
from examples.study.rates import chosen, extension
from examples.study.screening import chosen_objectives
from megatron_sspo.errors import UserError

_RECIPES = "examples/study/recipes.py"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the first exit code that is not 0, and 0 if all runs are finished."""
    parser = argparse.ArgumentParser(prog="python -m examples.study.run", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"sweeps to run: {', '.join(SWEEPS)}")
    parser.add_argument(
        "--objective", action="append", metavar="NAME", help="of the sweeps this objective alone, or several"
    )
    parser.add_argument("--seeds", type=int, default=99, help="at most so many seeds of each sweep that is no search")
    parser.add_argument("--seed-by-seed", action="store_true", help="all sweeps with one seed, then with the next")
    parser.add_argument("--at-once", type=int, default=2, help="number of runs at a time (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/study"))
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.only.split(",")] if options.only else list(SWEEPS)
    if unknown := [name for name in names if name not in SWEEPS]:
        parser.error(f"there is no sweep {unknown[0]!r}: choose from {', '.join(SWEEPS)}")
    for name in options.objective or ():
        if not any(name in SWEEPS[sweep].objectives for sweep in names):
            parser.error(f"none of these sweeps has an objective {name!r}")
    most = max(min(SWEEPS[name].seeds, options.seeds) for name in names)
    rounds = range(1, most + 1) if options.seed_by_seed else [options.seeds]
    try:
        return next((code for seeds in rounds for name in names if (code := _make(name, seeds, options))), 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _make(name: str, most_seeds: int, options: argparse.Namespace) -> int:
    """Makes the warm starts and the runs of a sweep, and what a search has to try beyond the end of its list."""
    sweep = SWEEPS[name]
    # lr* is a choice among all seeds: with fewer of them, cells would be at a learning rate that is not the study's
    seeds = sweep.seeds if name in SEARCHES else min(sweep.seeds, most_seeds)
    unit = chosen(sweep.search, options.output) if sweep.search else 1.0
    if sweep.screening:
        sweep = replace(sweep, objectives=chosen_objectives())
    if options.objective:
        kept = {label: text for label, text in sweep.objectives.items() if label in options.objective}
        if not kept:
            return 0
        sweep = replace(sweep, objectives=kept)
    start: Sequence[str] = ()
    if sweep.warm_start:
        warm = options.output / f"{sweep.recipe}-warm"
        starts = command(f"{_RECIPES}:warm_{sweep.recipe}", warm, seeds, options.at_once)
        if code := subprocess.run(starts, check=False).returncode:
            return code
        start = ("--start-from", str(warm / "seed={seed}"))
    rates: Sequence[float] = [unit * rate for rate in sweep.rates]
    while rates:
        runs = command(
            f"{_RECIPES}:{sweep.recipe}",
            options.output / folder_name(name),
            seeds,
            options.at_once,
            *grid(replace(sweep, rates=rates)),
            *start,
        )
        if code := subprocess.run(runs, check=False).returncode:
            return code
        beyond = extension(name, options.output) if name in SEARCHES else None
        rates = [] if beyond is None else [beyond]
    return 0


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
