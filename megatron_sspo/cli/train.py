"""`megatron-sspo train`: trains a policy from a recipe."""

import argparse
import os
import re
from functools import partial
from typing import TYPE_CHECKING

from megatron_sspo.cli.parser import add_recipe, as_path
from megatron_sspo.errors import UserError

if TYPE_CHECKING:
    from megatron_sspo.run import Run


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = command.add_argument
    add_recipe(command)
    add("--resume", type=as_path, metavar="DIR", help="folder of the run to resume")
    add(
        "--generate",
        action="store_true",
        help="writes the rollouts of all cycles into RUN/rollouts, and trains nothing",
    )
    add(
        "--rollouts", type=as_path, metavar="RUN", help="trains on the rollouts that --generate has written in that run"
    )
    add(
        "--profile",
        type=_updates,
        default=range(0),
        metavar="UPDATES",
        help="updates that torch's profiler traces, 3 or 3-5: RUN/profile, and the largest entries are printed",
    )


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Checks the run, and trains in this process, or starts the run's processes if it has several."""
    from megatron_sspo.job.profile import check_updates
    from megatron_sspo.preflight.preflight import preflight
    from megatron_sspo.processes import local, parent
    from megatron_sspo.processes.forks import may_fork, without_threads
    from megatron_sspo.processes.surroundings import order_kernels
    from megatron_sspo.recipe import load_recipe
    from megatron_sspo.run import in_layout_for

    if options.generate and (options.resume or options.rollouts):
        raise UserError("--generate begins a run of its own: leave out --resume and --rollouts")
    parent.check_tasks()
    if options.rollouts and not (options.rollouts / "rollouts").is_dir():
        raise UserError(f"{options.rollouts} has no folder rollouts: name the folder of a run of train --generate")
    with without_threads():
        run = load_recipe(options.recipe, options.set)
        check_updates(options.profile, run.num_updates)
        if parent.is_launched():
            run = in_layout_for(run, int(os.environ["WORLD_SIZE"]))
        # before the checks, which ask torch for GPUs
        order_kernels(tensor=run.parallel.tensor, context=run.parallel.context)
        if not parent.is_child():  # `launch` has checked its processes; torchrun and srun check nothing
            preflight(run, resume=options.resume)
        starts_others = run.parallel.num_processes > 1 and not parent.is_launched()
        if starts_others and may_fork():
            _import_loop()
            return local.launch(arguments, run.parallel.num_processes, partial(_train, run, options))
    if starts_others:
        return local.launch(arguments, run.parallel.num_processes)
    _import_loop()
    return _train(run, options)


def _import_loop() -> None:
    """Imports the training loop, and with it Megatron, so that forks need not import them."""
    from megatron_sspo.processes.surroundings import ignore_upstream_warnings

    ignore_upstream_warnings()
    import megatron_sspo.loop  # noqa: F401


def _train(run: "Run", options: argparse.Namespace) -> int:
    import torch

    from megatron_sspo.loop import train
    from megatron_sspo.processes import parent

    if parent.is_child():  # a fork's share of the cores was not known yet when torch was imported
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].partition(",")[0]))  # of nested levels the first
    if options.generate:
        from megatron_sspo.job.generate import generate

        return generate(run)
    return train(run, resume=options.resume, profile=options.profile, rollouts=options.rollouts)


def _updates(text: str) -> range:
    """Returns the updates that `3` or `3-5` names."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    updates = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
    if not updates or not updates[0]:
        raise argparse.ArgumentTypeError(f"{text!r} names no updates, which are counted from 1: write 3 or 3-5")
    return updates
