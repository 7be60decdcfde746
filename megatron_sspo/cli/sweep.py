"""`megatron-sspo sweep`."""

import argparse
from typing import Any

from megatron_sspo.cli.parser import add_command, add_recipe, as_path


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    help = "runs a grid of values of some fields, each with several seeds; the same command continues it"
    command = add_command(commands, "sweep", run=run, help=help)
    add_recipe(command)
    command.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="FIELD=[VALUE,...]",
        help='values as --set takes them: objective="[sspo(), gspo()]", or with labels "{ours: sspo()}"',
    )
    command.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="number of seeds, 0 to N-1, for each combination (%(default)s)",
    )
    command.add_argument("--at-once", type=int, default=1, metavar="N", help="number of runs at a time (%(default)s)")
    command.add_argument(
        "--output",
        type=as_path,
        metavar="DIR",
        help="folder of the sweep (default: the recipe's folder with -sweep appended)",
    )
    command.add_argument(
        "--start-from",
        type=as_path,
        metavar="DIR",
        help="folder of a run or model to start from, without a warm start; {seed} stands for a run's seed",
    )
    command.add_argument(
        "--on", choices=("local", "slurm", "nemo-run"), default="local", help="place of the runs (%(default)s)"
    )
    command.add_argument(
        "--sbatch", default="", metavar="OPTIONS", help='options for sbatch: --sbatch="--time=8:00:00"'
    )
    command.add_argument(
        "--executor", choices=("slurm", "local"), default="slurm", help="NeMo-Run executor (%(default)s)"
    )
    command.add_argument("--dry-run", action="store_true", help="prints the commands instead of running them")


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Runs the sweep, or submits it."""
    from megatron_sspo.sweep.command import sweep

    return sweep(options)
