"""Submits the runs of a sweep as a Slurm job array, or as the tasks of a NeMo-Run experiment."""

import argparse
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.writing import write_atomically
from megatron_sspo.launch import slurm
from megatron_sspo.launch.nemo_run_process import run_module
from megatron_sspo.sweep.folder import LOGS
from megatron_sspo.sweep.grid import Cell
from megatron_sspo.sweep.prepare import Prepared

_ARRAY = "array"  # folder in the sweep's folder: the name and arguments of each run, for a script without Python


def submit(prepared: Prepared, unfinished: Sequence[Cell], options: argparse.Namespace) -> int:
    """Submits the unfinished runs, except those that are in Slurm's queue already.

    Returns:
        sbatch's exit code; for an experiment, 0 if all of its tasks have succeeded.

    Raises:
        UserError: this machine has no Slurm or NeMo-Run, or the job does not fit the layout.
    """
    numbers = _numbers(prepared, unfinished)
    if slurm.uses_slurm(options):
        if shutil.which("sbatch") is None:
            raise UserError("there is no sbatch on this machine: start from a login node of the cluster")
        queued = _queued_runs(prepared.folder)
        numbers = [number for number in numbers if number not in queued]
        if queued:
            print(f"{len(queued)} runs are already in Slurm's queue and are not submitted again", flush=True)
    if not numbers:
        print(f"there is no run to start in {prepared.folder}", flush=True)
        return 0
    job = _job(prepared, numbers, options)
    _check_sizes(job, prepared, options)
    _write_arguments(prepared)
    return job.submit() if options.on == "slurm" else _run_experiment(prepared, numbers, job, options)


def print_jobs(prepared: Prepared, unfinished: Sequence[Cell], options: argparse.Namespace) -> None:
    """Prints what would be submitted."""
    numbers = _numbers(prepared, unfinished)
    job = _job(prepared, numbers, options)
    _check_sizes(job, prepared, options)
    if options.on == "slurm":
        print(job.describe(), flush=True)
    elif code := _run_experiment(prepared, numbers, job, options):
        raise UserError(f"NeMo-Run ended with exit code {code}: its messages are above")


def format_ranges(numbers: Sequence[int]) -> str:
    """Formats ascending numbers for sbatch's --array: 0,3-5,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _numbers(prepared: Prepared, cells: Sequence[Cell]) -> list[int]:
    return sorted(prepared.sweep.order.index(cell.name) for cell in cells)


def _comment(folder: Path) -> str:
    """Returns the job comment by which a sweep's jobs are found in Slurm's queue."""
    return f"sweep {folder}"


def _queued_runs(folder: Path) -> set[int]:
    """Returns the numbers of the runs that are in Slurm's queue, waiting or running.

    Raises:
        UserError: Slurm does not answer.
    """
    command = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%K %k"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise UserError(f"squeue does not answer ({done.stderr.strip()}): wait until Slurm does")
    found = set()
    for line in done.stdout.splitlines():
        number, _, comment = line.strip().partition(" ")
        if comment.startswith(f"{_comment(folder)} run "):  # a task of an experiment
            number, comment = comment.rpartition(" ")[2], _comment(folder)
        if comment == _comment(folder) and number.isdigit():
            found.add(int(number))
    return found


def _job(prepared: Prepared, numbers: Sequence[int], options: argparse.Namespace) -> slurm.SlurmJob:
    variables = slurm.variables_from_environment()
    if "RUN" in variables:
        raise UserError("RUN is set, but each run of a sweep has its own folder: unset it and use --output")
    given = slurm.split_options(options.sbatch)
    if any(word.startswith(("--array", "--comment")) for word in given):
        raise UserError("--sbatch has --array or --comment, which the sweep sets itself: leave them out")
    of_sweep = []
    if options.on == "slurm":
        log = f"--output={prepared.folder / LOGS}/%x-%A_%a.out"
        of_sweep = [f"--array={format_ranges(numbers)}%{options.at_once}", f"--comment={_comment(prepared.folder)}"]
        given = [log, *given]
    return slurm.SlurmJob(
        recipe=str(prepared.folder), options=[*given, *of_sweep], variables=variables, script=slurm.SWEEP_SCRIPT
    )


def _check_sizes(job: slurm.SlurmJob, prepared: Prepared, options: argparse.Namespace) -> None:
    if slurm.uses_slurm(options):
        for run in prepared.runs.values():
            slurm.check_size(job, {run.parallel.num_processes, *run.layouts})


def _write_arguments(prepared: Prepared) -> None:
    """Writes the name of each run and its training arguments to a file named by its number, NUL after each word."""
    folder, sweep = prepared.folder / _ARRAY, prepared.sweep
    with os_errors_as_user_errors(folder):
        folder.mkdir(exist_ok=True)
        for number, cell in enumerate(sweep.cells()):
            sets = [part for text in sweep.assignments_of(cell) for part in ("--set", text)]
            words = [cell.name, sweep.recipe, *sets]
            write_atomically(folder / str(number), "".join(f"{word}\0" for word in words))


def _run_experiment(
    prepared: Prepared, numbers: Sequence[int], job: slurm.SlurmJob, options: argparse.Namespace
) -> int:
    """Runs the experiment with the interpreter that has NeMo-Run, and waits for its end."""
    arguments = [str(prepared.folder), f"--comment={_comment(prepared.folder)}", f"--at-once={options.at_once}"]
    arguments += [f"--run={number}={prepared.sweep.order[number]}" for number in numbers]
    module = "megatron_sspo.launch.nemo_run_sweep"
    return run_module(module, arguments, job, executor=options.executor, dry_run=options.dry_run)
