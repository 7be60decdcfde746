"""`megatron-sspo sweep`."""

import argparse
from pathlib import Path
from typing import Any

from megatron_sspo.cli.parser import add_command, add_recipe


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    help = "a grid of runs: values of some fields, each with several seeds; goes on where it was"
    command = add_command(commands, "sweep", run=run, help=help)
    add_recipe(command, "as for train")
    command.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="FIELD=[VALUE,...]",
        help='values as --set takes them: objective="[sspo(), gspo()]", or with labels "{ours: sspo()}"',
    )
    command.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N-1 for each (%(default)s)")
    command.add_argument("--at-once", type=int, default=1, metavar="N", help="runs at a time (%(default)s)")
    command.add_argument(
        "--output", type=Path, metavar="DIR", help="the sweep's folder (default: the recipe's own, with -sweep)"
    )
    command.add_argument(
        "--start-from",
        type=Path,
        metavar="DIR",
        help="a run or model folder to start from, without a warm start; {seed} in it stands for a run's seed",
    )
    command.add_argument("--on", choices=("local", "slurm", "nemo-run"), default="local", help="where (%(default)s)")
    command.add_argument("--sbatch", default="", metavar="OPTIONS", help='of sbatch: --sbatch="--time=8:00:00"')
    command.add_argument("--executor", choices=("slurm", "local"), default="slurm", help="of NeMo-Run (%(default)s)")
    command.add_argument("--dry-run", action="store_true", help="prints what would be started")


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Runs the sweep, or submits it."""
    from megatron_sspo.sweep.command import sweep

    return sweep(options)
