"""Runs a sweep as the tasks of one NeMo-Run experiment. This module needs NeMo-Run, as `nemo_run.py` does."""

# If NeMo-Run is not installed, pyright resolves the name nemo_run to a file of this folder.
# pyright: reportAttributeAccessIssue=false

import argparse
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import nemo_run as run

from megatron_sspo.errors import UserError
from megatron_sspo.launch.nemo_run import InBatchShell, check_accounting, final_states, local_script, slurm_executor
from megatron_sspo.launch.slurm import SWEEP_SCRIPT, SlurmJob, split_options, variables_from_environment

_LONGEST_NAME = 48  # characters of a task's name


def launch(
    job: SlurmJob, runs: Mapping[int, str], *, on_slurm: bool, at_once: int, comment: str, dry_run: bool = False
) -> int:
    """Runs an experiment with a task for each run until its end.

    Args:
        job: a job of slurm/sweep.sbatch, whose recipe is the sweep's folder.
        runs: the name of each run by its number.
        on_slurm: whether the tasks are jobs of Slurm; otherwise they run on this machine.
        at_once: the number of runs at a time. Each task waits for the task `at_once` places before it to end,
            successfully or not.
        comment: the comment of the jobs, by which they are found in Slurm's queue.
        dry_run: whether to only print what NeMo-Run would submit.

    Returns:
        0 if every task has succeeded, otherwise 1.
    """
    with run.Experiment(Path(job.recipe).name) as experiment:
        ids: list[str] = []
        for place, (number, name) in enumerate(runs.items()):
            executor = _executor(job, f"{comment} run {number}") if on_slurm else run.LocalExecutor()
            added = experiment.add(
                _task(job, number, name, on_slurm=on_slurm, place=place % at_once, at_once=at_once),
                executor=executor,
                name=task_name(number, name),
                plugins=[InBatchShell(project=str(job.project), environment=job.environment)],
                dependencies=[ids[place - at_once]] if place >= at_once else None,
            )
            ids.append(added)
            print(f"{added}: {name}", flush=True)
        if dry_run:
            experiment.dryrun()
            return 0
        if on_slurm:
            check_accounting(_executor(job, comment))
        experiment.run(tail_logs=False)
    states = Counter(final_states(experiment, len(runs)))
    listed = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    print(f"experiment {experiment._id}: {listed}", flush=True)
    return 0 if set(states) == {"SUCCEEDED"} else 1


def task_name(number: int, name: str) -> str:
    """Returns a task name for a run with only letters, digits and dashes, as torchx and Slurm require."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    return f"run-{number}-{plain}"[:_LONGEST_NAME].rstrip("-")


def _executor(job: SlurmJob, comment: str) -> "run.SlurmExecutor":
    return slurm_executor(job, comment=comment, dependency_type="afterany")


def _task(job: SlurmJob, number: int, name: str, *, on_slurm: bool, place: int, at_once: int) -> "run.Script":
    if on_slurm:
        return run.Script(inline=f"exec bash {shlex.join([job.script, job.recipe, str(number)])}\n")
    arguments = [job.recipe, name, "--place", str(place), "--at-once", str(at_once)]
    return local_script(job, "megatron_sspo.sweep.task", *arguments)


def main() -> int:
    """Submits the experiment; called by `megatron-sspo sweep --on nemo-run` after its checks."""
    parser = argparse.ArgumentParser(prog="megatron_sspo.launch.nemo_run_sweep", description=main.__doc__)
    parser.add_argument("folder")
    parser.add_argument("--run", action="append", default=[], metavar="NUMBER=NAME")
    parser.add_argument("--comment", default="")
    parser.add_argument("--sbatch", default="")
    parser.add_argument("--executor", choices=("slurm", "local"), default="slurm")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    try:
        job = SlurmJob(
            recipe=options.folder,
            options=split_options(options.sbatch),
            variables=variables_from_environment(),
            script=SWEEP_SCRIPT,
        )
        return launch(
            job,
            {int(number): name for number, _, name in (text.partition("=") for text in options.run)},
            on_slurm=options.executor == "slurm",
            at_once=options.at_once,
            comment=options.comment,
            dry_run=options.dry_run,
        )
    except UserError as error:
        print(f"megatron-sspo: {error}", file=sys.stderr, flush=True)
        return 2
