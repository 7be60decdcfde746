"""A sweep on a Slurm cluster: as one job array, or as an experiment of NeMo-Run for each run."""

import argparse
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sspo_lab.driver import Start
from sspo_lab.folder import LOGS
from sspo_lab.grid import Cell, Sweep
from sspo_lab.trainer import LabError, Trainer

_ARRAY = "array"  # folder in the sweep's folder: the name and arguments of each run, for a script without Python


def without_queued(folder: Path, sweep: Sweep, cells: Sequence[Cell]) -> list[Cell]:
    """Returns the runs that are not in Slurm's queue, waiting or running; says so if there are others.

    Raises LabError if this machine has no Slurm, or it does not answer.
    """
    if shutil.which("sbatch") is None:
        raise LabError("there is no sbatch on this machine: start from a login node of the cluster")
    command = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%K %k"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise LabError(f"squeue does not answer ({done.stderr.strip()}): wait until Slurm does")
    queued = set()
    for line in done.stdout.splitlines():
        number, _, comment = line.strip().partition(" ")
        if comment.startswith(f"{_comment(folder)} run "):  # of an experiment
            number, comment = comment.rpartition(" ")[2], _comment(folder)
        if comment == _comment(folder):
            queued.add(number)
    left = [cell for cell in cells if str(sweep.order.index(cell.name)) not in queued]
    if len(left) < len(cells):
        print(f"{len(cells) - len(left)} runs are already in Slurm's queue and are not submitted again", flush=True)
    return left


def check_sbatch(given: Sequence[str]) -> None:
    """Raises LabError if the user sets what a sweep sets itself."""
    if os.environ.get("RUN"):
        raise LabError("RUN is set, but each run of a sweep has its own folder: unset it and use --output")
    if any(word.startswith(("--array", "--comment")) for word in given):
        raise LabError("--sbatch has --array or --comment, which the sweep sets itself: leave them out")


def submit_array(
    folder: Path, sweep: Sweep, cells: Sequence[Cell], trainer: Trainer, options: argparse.Namespace
) -> int:
    """Submits one job array of slurm/sweep.sbatch for these runs, and returns sbatch's exit code."""
    if not cells:
        print(f"there is no run to start in {folder}", flush=True)
        return 0
    if not options.dry_run:
        _write_arguments(folder, sweep)
    numbers = ",".join(str(sweep.order.index(cell.name)) for cell in cells)
    log = f"--output={folder / LOGS}/%x-%A_%a.out"
    sbatch = [log, *options.sbatch, f"--array={numbers}%{options.at_once}", f"--comment={_comment(folder)}"]
    return trainer.submit(folder, sbatch, dry_run=options.dry_run)


def start_experiment(folder: Path, sweep: Sweep, cell: Cell, sbatch: Sequence[str]) -> Start:
    """Returns the start of an experiment, whose job of slurm/train.sbatch has by default one node."""
    comment = f"--comment={_comment(folder)} run {sweep.order.index(cell.name)}"
    sets = [part for text in sweep.assignments_of(cell) for part in ("--set", text)]
    options = shlex.join(["--nodes=1", *sbatch, comment])
    sizes = {name: os.environ.get(name) or "0" for name in ("SERVER_NODES", "SERVERS_PER_NODE")}
    arguments = ["launch", sweep.recipe, *sets, "--on", "nemo-run", f"--sbatch={options}"]
    return arguments, {"RUN": str(folder / cell.name), **sizes}


def _comment(folder: Path) -> str:
    """Returns the job comment by which a sweep's jobs are found in Slurm's queue."""
    return f"sweep {folder}"


def _write_arguments(folder: Path, sweep: Sweep) -> None:
    """Writes the name of each run and its training arguments to a file named by its number, NUL after each word."""
    (folder / _ARRAY).mkdir(exist_ok=True)
    for number, cell in enumerate(sweep.cells()):
        sets = [part for text in sweep.assignments_of(cell) for part in ("--set", text)]
        partial = folder / _ARRAY / f".{number}.partial"
        partial.write_text("".join(f"{word}\0" for word in [cell.name, sweep.recipe, *sets]), encoding="utf-8")
        os.replace(partial, folder / _ARRAY / str(number))
