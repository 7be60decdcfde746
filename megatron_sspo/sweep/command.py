"""`megatron-sspo sweep`: prepares a grid of runs, and runs them here, by Slurm, or by NeMo-Run."""

import argparse
import shlex
import sys

from megatron_sspo.config.naming import shorten
from megatron_sspo.errors import UserError
from megatron_sspo.launch.slurm import uses_slurm
from megatron_sspo.preflight.preflight import preflight
from megatron_sspo.processes.console import Display, pluralize
from megatron_sspo.rollout.servers.build import visible_gpus
from megatron_sspo.run_folder.lock import RunLock
from megatron_sspo.sweep import jobs
from megatron_sspo.sweep.disk import warn_of_disk
from megatron_sspo.sweep.driver import Driver, share_of_machine
from megatron_sspo.sweep.folder import LOGS, status, train_arguments, write_sweep
from megatron_sspo.sweep.grid import Cell
from megatron_sspo.sweep.prepare import Prepared, prepare
from megatron_sspo.sweep.progress import SweepProgress

_LONGEST_LIST = 400  # characters of the values that the command does not name
# fields that `prepare` has checked in every run, and nothing else reads before a run starts
_FULLY_CHECKED = ("objective", "penalties", "correction", "optimizer", "num_updates", "updates_per_sync")


def sweep(options: argparse.Namespace) -> int:
    """Runs or submits the sweep; returns exit code 0 if every run is finished or has been submitted to Slurm.

    Raises:
        UserError: a value is wrong, the folder holds another sweep, or another process runs this sweep.
    """
    if options.at_once < 1:
        raise UserError(f"--at-once is {options.at_once}: it must be 1 or more")
    if options.on == "local" and options.sbatch:
        raise UserError("--sbatch is for Slurm jobs: add --on slurm or --on nemo-run, or leave it out")
    if options.on != "nemo-run" and options.executor != "slurm":
        raise UserError("--executor is NeMo-Run's: add --on nemo-run, or leave it out")
    asked = (options.recipe, options.set, options.vary, options.seeds)
    given = {"output": options.output, "start_from": options.start_from}
    prepared = prepare(*asked, **given)
    if prepared.others:
        others = shorten(", ".join(prepared.others), _LONGEST_LIST)
        print(f"the sweep in {prepared.folder} also has {others}, which run too", file=sys.stderr, flush=True)
    if options.dry_run:
        _print_commands(prepared, options)
        return 0
    folder = prepared.folder
    with RunLock(folder, what="a sweep", option="--output"):
        prepared = prepare(*asked, **given)  # again, because another process may have changed it before the lock
        unfinished = _unfinished(prepared)
        _check(prepared, options)
        new = [prepared.runs[cell.name] for cell in unfinished if status(folder / cell.name).state == "new"]
        if warning := warn_of_disk(new, folder):
            print(f"warning: {warning}", file=sys.stderr, flush=True)
        write_sweep(folder, prepared.sweep)
        if options.on != "local":
            return jobs.submit(prepared, unfinished, options)
        return _run_here(prepared, unfinished, options.at_once)


def _unfinished(prepared: Prepared) -> list[Cell]:
    cells = prepared.sweep.cells()
    return [cell for cell in cells if status(prepared.folder / cell.name).state != "finished"]


def _check(prepared: Prepared, options: argparse.Namespace) -> None:
    """Checks data, model and machine before the first run starts, because the last one may start days later.

    Each value of a varied field is checked with the first new run that has it.

    Raises:
        UserError: a run could not start; the message names it, unless it has the values of all others.
    """
    checked: set[tuple[str, str]] | None = None
    for cell in prepared.sweep.cells():
        values = {item for item in cell.labels.items() if item[0].partition(".")[0] not in _FULLY_CHECKED}
        is_new = status(prepared.folder / cell.name).state == "new"
        if not is_new or (checked is not None and values <= checked):
            continue
        try:
            preflight(prepared.runs[cell.name], resume=None, elsewhere=uses_slurm(options))
        except UserError as error:
            if not values:
                raise
            raise UserError(f"the run {cell.name}: {error}") from error
        checked = (checked or set()) | values


def _run_here(prepared: Prepared, unfinished: list[Cell], at_once: int) -> int:
    folder = prepared.folder
    display = Display(silent=False)
    display.log_to(folder / LOGS / "sweep.txt")
    progress = SweepProgress(folder, {name: run.num_updates for name, run in prepared.runs.items()}, display)
    all_runs = pluralize(len(prepared.runs), "run")
    progress.log(f"{all_runs}, {len(prepared.runs) - len(unfinished)} of them finished, in {folder}")
    gpus = visible_gpus()

    def environment_of(slot: int, cell: Cell) -> dict[str, str]:
        num_processes = prepared.runs[cell.name].parallel.num_processes
        return share_of_machine(slot, at_once=at_once, num_processes=num_processes, gpus=gpus)

    driver = Driver(folder, prepared.sweep, unfinished, progress, at_once=at_once, environment_of=environment_of)
    try:
        code = driver.run()
    finally:
        progress.close()
    if not code:
        progress.log(f"megatron-sspo table {shlex.quote(str(folder))} and megatron-sspo plot have the results")
    return code


def _print_commands(prepared: Prepared, options: argparse.Namespace) -> None:
    """Prints the command of each unfinished run, and with Slurm or NeMo-Run also what would be submitted."""
    unfinished = _unfinished(prepared)
    for cell in unfinished:
        print(shlex.join(["megatron-sspo", *train_arguments(prepared.folder, prepared.sweep, cell)]))
    if options.on != "local" and unfinished:
        jobs.print_jobs(prepared, unfinished, options)
    print(f"{len(unfinished)} of {pluralize(len(prepared.runs), 'run')} to go, into {prepared.folder}", flush=True)
