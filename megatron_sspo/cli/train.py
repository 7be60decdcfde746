"""`megatron-sspo train`."""

import argparse
import os
from pathlib import Path
from typing import Any

from megatron_sspo.cli.parser import add_command, add_recipe


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    command = add_command(commands, "train", run=run, help="trains a policy from a recipe")
    add_recipe(command)
    command.add_argument("--resume", type=Path, metavar="DIR", help="folder of the run to resume")


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Checks the run, and trains in this process, or starts the run's processes if it has several."""
    from megatron_sspo.preflight.preflight import preflight
    from megatron_sspo.processes import local
    from megatron_sspo.processes.cuda_connections import order_kernels
    from megatron_sspo.processes.output import ignore_upstream_warnings, survive_full_disk
    from megatron_sspo.recipe import load_recipe
    from megatron_sspo.run import in_layout_for

    survive_full_disk()
    run = load_recipe(options.recipe, options.set)
    if local.is_launched():
        run = in_layout_for(run, int(os.environ["WORLD_SIZE"]))
    # before the checks, which ask torch for GPUs
    order_kernels(tensor=run.parallel.tensor, context=run.parallel.context, megatron=run.megatron)
    if not local.is_child():  # processes of `launch` are checked by their parent, those of torchrun or srun are not
        preflight(run, resume=options.resume)
        if run.parallel.num_processes > 1 and not local.is_launched():
            return local.launch(arguments, run.parallel.num_processes)
    ignore_upstream_warnings()
    from megatron_sspo.loop import train

    return train(run, resume=options.resume)
