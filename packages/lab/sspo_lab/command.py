"""`megatron-sspo sweep`: prepares a grid of runs, and runs them here, by Slurm, or by NeMo-Run."""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sspo_lab import cluster
from sspo_lab.driver import Driver, Start, share_of_machine, visible_gpus
from sspo_lab.folder import load_existing_or_new, locked, status, train_arguments, write_sweep
from sspo_lab.grid import PATH, SEED, Cell, Sweep
from sspo_lab.progress import SweepProgress, pluralize
from sspo_lab.trainer import LabError, Trainer
from sspo_lab.values import read_vary

_LONGEST_LIST = 400  # characters of the values that the command does not name


@dataclass(frozen=True)
class Prepared:
    """A sweep that a command continues or begins.

    Attributes:
        folder: the folder of the sweep.
        sweep: the sweep with the command's values and seeds.
        runs: the configuration of each run by its name.
        others: the values and seeds that an earlier command gave, and this one did not.
    """

    folder: Path
    sweep: Sweep
    runs: dict[str, Any]
    others: Sequence[str]

    @property
    def unfinished(self) -> list[Cell]:
        """The runs that are not finished, in their order."""
        return [cell for cell in self.sweep.cells() if status(self.folder / cell.name).state != "finished"]


def add_arguments(command: argparse.ArgumentParser, as_path: Callable[[str], Path]) -> None:
    """Adds the arguments of `sweep` besides the recipe and `--set`."""

    def add(name: str, **settings: Any) -> None:
        command.add_argument(name, **settings)

    values = 'values as --set takes them: objective="[sspo(), gspo()]", or with labels "{ours: sspo()}"'
    add("--vary", action="append", default=[], metavar="FIELD=[VALUE,...]", help=values)
    add("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N-1 for each combination (%(default)s)")
    add("--at-once", type=int, default=1, metavar="N", help="number of runs at a time (%(default)s)")
    folder = "folder of the sweep (default: the recipe's folder with -sweep appended)"
    add("--output", type=as_path, metavar="DIR", help=folder)
    start = "folder of a run or model to start from, without a warm start; {seed} stands for a run's seed"
    add("--start-from", type=as_path, metavar="DIR", help=start)
    add("--on", choices=("local", "slurm", "nemo-run"), default="local", help="place of the runs (%(default)s)")
    options = 'options for sbatch: --sbatch="--time=8:00:00"'
    add("--sbatch", type=shlex.split, default=[], metavar="OPTIONS", help=options)
    add("--dry-run", action="store_true", help="prints the commands instead of running them")


def sweep(options: argparse.Namespace, trainer: Trainer) -> int:
    """Runs or submits a sweep; returns exit code 0 if every run is finished or has been submitted to Slurm.

    Raises LabError if a value is wrong, the folder holds another sweep, or another process runs this sweep.
    """
    if min(options.at_once, options.seeds) < 1:
        raise LabError("--at-once and --seeds must be 1 or more")
    if options.on == "local" and options.sbatch:
        raise LabError("--sbatch is for Slurm jobs: add --on slurm or --on nemo-run, or leave it out")
    sbatch = options.sbatch if options.on != "local" else None
    if sbatch is not None:
        cluster.check_sbatch(sbatch)
    prepared = prepare(options, trainer)
    if prepared.others:
        others = ", ".join(prepared.others)[:_LONGEST_LIST]
        print(f"the sweep in {prepared.folder} also has {others}, which run too", file=sys.stderr, flush=True)
    if options.dry_run:
        return _dry_run(prepared, options, trainer)
    with locked(prepared.folder):
        prepared = prepare(options, trainer)  # again, because another process may have changed it before the lock
        cells = prepared.unfinished
        if sbatch is not None:
            cells = cluster.without_queued(prepared.folder, prepared.sweep, cells)
        _check(prepared, trainer, sbatch)
        write_sweep(prepared.folder, prepared.sweep)
        if options.on == "slurm":
            return cluster.submit_array(prepared.folder, prepared.sweep, cells, trainer, options)
        return _run(prepared, cells, options)


def prepare(options: argparse.Namespace, trainer: Trainer) -> Prepared:
    """Adds the requested values and seeds to the folder's sweep, and loads every configuration. Writes nothing.

    Raises:
        LabError: an argument cannot be read, or the folder holds another sweep. The trainer's errors pass through.
    """
    vary = dict(map(read_vary, options.vary))
    if len(vary) < len(options.vary):
        raise LabError("--vary names a field twice: list all of its values in one")
    of_start = ("model.path", "model.init") if options.start_from else ()
    for name in (assignment.partition("=")[0].strip() for assignment in options.set):
        if name in ("seed", *of_start) or any(f"{name}.".startswith(f"{field}.") for field in vary):
            raise LabError(f"--set {name} is given, but the sweep sets it for each run: leave it out")
    if given := next((name for name in of_start if name in vary), None):
        raise LabError(f"--vary {given} is given with --start-from, which sets it: leave one of them out")
    start = _start_from(options.start_from, options.seeds) if options.start_from else ()
    assignments = (*options.set, *start)
    base = trainer.load(options.recipe, assignments)
    folder = (options.output or Path(base["output"]) / f"{base['name']}-sweep").absolute()
    new = Sweep(recipe=_absolute(options.recipe), assignments=assignments, run=base)
    found = load_existing_or_new(folder, new).extended(vary, options.seeds)
    runs = {cell.name: trainer.load(found.recipe, _sets(folder, found, cell)) for cell in found.cells()}
    return Prepared(folder, found, runs, found.others(vary, options.seeds))


def _sets(folder: Path, sweep: Sweep, cell: Cell) -> list[str]:
    return [*sweep.assignments_of(cell), f"output={folder}", f"name={cell.name}"]


def _absolute(recipe: str) -> str:
    """Returns a recipe's name with the absolute path of its file, for a process with another working folder."""
    path = recipe.partition(":")[0]
    return f"{Path(path).absolute()}{recipe[len(path) :]}" if path.endswith(".py") else recipe


def _start_from(folder: Path, seeds: int) -> list[str]:
    """Returns overrides for runs that start from another run's weights, and so need no warm start of their own.

    Raises LabError if, for a seed, the folder is neither that of a finished run nor a Hugging Face folder.
    """
    below = set()
    for seed in range(seeds):
        place = Path(str(folder).replace(SEED, str(seed)))
        is_run = (place / "metrics.jsonl").exists() or (place / "checkpoints").exists()
        if is_run and not (place / "model" / "config.json").exists():
            raise LabError(f"{place} is a run that has no model yet: finish it with --resume {place} first")
        if not is_run and not (place / "config.json").exists():
            raise LabError(f"{place} has no config.json: name a finished run, or a Hugging Face folder, to start from")
        below.add("/model" if is_run else "")
    if len(below) > 1:
        raise LabError(f"{folder} is the folder of a run for some seeds and of a model for others: name one kind")
    return [f"{PATH}{folder.absolute()}{below.pop()}", "model.init=pretrained", "warm_start=none"]


def _check(prepared: Prepared, trainer: Trainer, sbatch: Sequence[str] | None) -> None:
    """Checks data, model and machine before the first run starts, because the last one may start days later.

    Each value of a varied field is checked with the first new run that has it. Raises LabError with the run that could
    not start.
    """
    checked: set[tuple[str, str]] | None = None
    for cell in prepared.sweep.cells():
        values = set(cell.labels.items())
        is_new = status(prepared.folder / cell.name).state == "new"
        if not is_new or (checked is not None and values <= checked):
            continue
        if why := trainer.why_not(prepared.sweep.recipe, _sets(prepared.folder, prepared.sweep, cell), sbatch):
            raise LabError(f"the run {cell.name}: {why}")
        checked = (checked or set()) | values


def _run(prepared: Prepared, cells: Sequence[Cell], options: argparse.Namespace) -> int:
    """Runs the sweep from here: each run by `train` on this machine, or by an experiment of NeMo-Run on the cluster."""
    folder, gpus = prepared.folder, visible_gpus()
    progress = SweepProgress(folder, {name: run["num_updates"] for name, run in prepared.runs.items()})
    num_finished = len(prepared.runs) - len(prepared.unfinished)
    progress.log(f"{pluralize(len(prepared.runs), 'run')}, {num_finished} of them finished, in {folder}")

    def start_here(slot: int, cell: Cell) -> Start:
        layout = prepared.runs[cell.name]["parallel"]
        num_processes = math.prod(layout[name] for name in ("data", "tensor", "pipeline", "context"))
        share = share_of_machine(slot, at_once=options.at_once, num_processes=num_processes, gpus=gpus)
        return train_arguments(folder, prepared.sweep, cell), share

    def start_experiment(_: int, cell: Cell) -> Start:
        return cluster.start_experiment(folder, prepared.sweep, cell, options.sbatch)

    is_here = options.on == "local"
    driver = Driver(
        folder,
        cells,
        progress,
        at_once=options.at_once,
        start=start_here if is_here else start_experiment,
        stopped="the runs have stopped" if is_here else "Slurm goes on with the jobs that it has",
    )
    try:
        code = driver.run()
    finally:
        progress.close()
    if not code:
        progress.log(f"megatron-sspo table {shlex.quote(str(folder))} and megatron-sspo plot have the results")
    return code


def _dry_run(prepared: Prepared, options: argparse.Namespace, trainer: Trainer) -> int:
    """Prints the command of each unfinished run, or what would be submitted to Slurm."""
    cells, code = prepared.unfinished, 0
    for cell in cells:
        arguments, environment = train_arguments(prepared.folder, prepared.sweep, cell), {}
        if options.on == "nemo-run":
            arguments, environment = cluster.start_experiment(prepared.folder, prepared.sweep, cell, options.sbatch)
        variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        print(*variables, shlex.join(["megatron-sspo", *arguments]))
    if options.on == "slurm" and cells:
        code = cluster.submit_array(prepared.folder, prepared.sweep, cells, trainer, options)
    print(f"{len(cells)} of {pluralize(len(prepared.runs), 'run')} to go, into {prepared.folder}", flush=True)
    return code
