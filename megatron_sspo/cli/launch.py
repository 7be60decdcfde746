"""`megatron-sspo launch`."""

import argparse
from pathlib import Path
from typing import Any

from megatron_sspo.cli.parser import add_command, add_recipe
from megatron_sspo.launch.slurm import SCRIPT


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    help = "checks a recipe, and starts it here, by Slurm or by NeMo-Run"
    command = add_command(commands, "launch", run=run, help=help)
    add_recipe(command, "as for train")
    command.add_argument(
        "--on", choices=("local", "slurm", "nemo-run"), default="local", help="where (default: %(default)s)"
    )
    command.add_argument("--check", action="store_true", help="the checks alone, and what each rank needs of memory")
    command.add_argument("--dry-run", action="store_true", help="prints what would be started, and checks it")
    command.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in this folder (--on local)")
    command.add_argument(
        "--memory", type=float, metavar="GB", help="of a GPU there, for a check on a machine that has none"
    )
    command.add_argument(
        "--sbatch", default="", metavar="OPTIONS", help='of sbatch: --sbatch="--nodes=6 --time=8:00:00"'
    )
    command.add_argument("--script", default=SCRIPT, help="of slurm/, to submit (default: %(default)s)")
    command.add_argument(
        "--executor", choices=("slurm", "local"), default="slurm", help="of NeMo-Run (default: %(default)s)"
    )


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Checks the run, and starts it."""
    from megatron_sspo.launch.command import launch

    return launch(options)
