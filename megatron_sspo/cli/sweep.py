"""`megatron-sspo sweep`: runs a grid of values of some fields, with several seeds; the same command continues it."""

import argparse
import importlib.util
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_sspo.cli.parser import add_recipe, as_path
from megatron_sspo.errors import UserError
from megatron_sspo.launch import slurm
from megatron_sspo.plots import lab


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_recipe(command)
    if importlib.util.find_spec("sspo_lab") is not None:
        lab.call("command.add_arguments", command, as_path)
    else:  # the command then says how it is installed
        command.add_argument("others", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Runs the sweep, or submits it."""
    return lab.call("command.sweep", options, _Trainer())


class _Trainer:
    """The trainer, as `sspo_lab.trainer.Trainer` describes it."""

    def load(self, recipe: str, assignments: Sequence[str]) -> Mapping[str, Any]:
        from megatron_sspo.config.overrides import config_to_json
        from megatron_sspo.recipe import load_recipe

        return config_to_json(load_recipe(recipe, assignments))

    def why_not(self, recipe: str, assignments: Sequence[str], sbatch: Sequence[str] | None) -> str:
        from megatron_sspo.preflight.preflight import preflight
        from megatron_sspo.recipe import load_recipe

        run = load_recipe(recipe, assignments)
        try:
            if sbatch is not None:
                slurm.check_size(self._job(recipe, sbatch), {run.parallel.num_processes, *run.layouts})
            preflight(run, resume=None, elsewhere=sbatch is not None)
        except UserError as error:
            return str(error)
        return ""

    def submit(self, sweep: Path, sbatch: Sequence[str], *, dry_run: bool) -> int:
        job = self._job(str(sweep), sbatch)
        if not dry_run:
            return job.submit()
        print(job.describe(), flush=True)
        return 0

    def _job(self, recipe: str, sbatch: Sequence[str]) -> slurm.SlurmJob:
        options = slurm.split_options(shlex.join(sbatch))
        variables = slurm.variables_from_environment()
        return slurm.SlurmJob(recipe=recipe, options=options, variables=variables, script=slurm.SWEEP_SCRIPT)
