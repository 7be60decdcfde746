"""`megatron-sspo launch`."""

import argparse
from typing import Any

from megatron_sspo.cli.parser import add_command, add_recipe, as_path
from megatron_sspo.launch.slurm import SCRIPT


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    help = "checks a recipe and starts it, on this machine, with Slurm or with NeMo-Run"
    command = add_command(commands, "launch", run=run, help=help)
    add_recipe(command)
    command.add_argument(
        "--on", choices=("local", "slurm", "nemo-run"), default="local", help="place of the run (default: %(default)s)"
    )
    command.add_argument("--check", action="store_true", help="only checks, and prints the memory of each rank")
    command.add_argument(
        "--dry-run", action="store_true", help="prints the commands instead of running them, and checks"
    )
    command.add_argument("--resume", type=as_path, metavar="DIR", help="folder of the run to resume (--on local)")
    command.add_argument(
        "--memory", type=float, metavar="GB", help="memory of one target GPU, to check on a machine without GPUs"
    )
    command.add_argument(
        "--sbatch", default="", metavar="OPTIONS", help='options for sbatch: --sbatch="--nodes=6 --time=8:00:00"'
    )
    command.add_argument("--script", default=SCRIPT, help="script of slurm/ to submit (default: %(default)s)")
    command.add_argument(
        "--executor", choices=("slurm", "local"), default="slurm", help="NeMo-Run executor (default: %(default)s)"
    )
    _add_rehearsal(command)


def _add_rehearsal(command: argparse.ArgumentParser) -> None:
    rehearsal = command.add_argument_group(
        "rehearsal", "runs an update's code as one rank of each pipeline stage, without GPUs and without the memory"
    )
    rehearsal.add_argument(
        "--rehearse", action="store_true", help="only rehearses: prints memory, messages, FLOPs and a predicted time"
    )
    defaults: dict[str, Any] = {}

    def add(*name: str, **settings: Any) -> None:
        added = rehearsal.add_argument(*name, **settings)
        defaults[added.dest] = added.default

    add("--stage", type=int, metavar="S", help="rehearse only pipeline stage S, from 1 (default: every stage)")
    add("--rank", type=int, metavar="R", help="rehearse only rank R")
    add("--machine", default="h100x8", metavar="NAME", help="machine of the predicted time (default: %(default)s)")
    add(
        "--skew",
        type=float,
        default=1.0,
        metavar="X",
        help="how many times as often the experts of the first expert rank are chosen as the others (default: 1)",
    )
    most = "(default: as many as it may have)"
    add("--prompt-tokens", type=int, default=0, metavar="N", help=f"tokens of each prompt {most}")
    add("--response-tokens", type=int, default=0, metavar="N", help=f"tokens of each response {most}")
    add(
        "--microbatches",
        type=int,
        default=0,
        metavar="N",
        help="the largest number of microbatches to rehearse (default: enough to fill the pipeline, and one more)",
    )
    add("--output", type=as_path, metavar="FILE", help="the JSON to write (default: OUTPUT/NAME.rehearsal.json)")
    command.set_defaults(of_rehearsal=defaults)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Checks the run, and starts it."""
    from megatron_sspo.launch.command import launch

    return launch(options)
