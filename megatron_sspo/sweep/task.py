"""One run of a sweep, as a task of an experiment on this machine: `python -m megatron_sspo.sweep.task`."""

import argparse
import os
import sys
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.processes.console import Display
from megatron_sspo.processes.surroundings import prepare_process
from megatron_sspo.recipe import load_recipe
from megatron_sspo.rollout.servers.build import visible_gpus
from megatron_sspo.sweep.driver import Driver, share_of_machine
from megatron_sspo.sweep.folder import read_sweep, status
from megatron_sspo.sweep.grid import Cell
from megatron_sspo.sweep.progress import SweepProgress


def run_one(folder: Path, name: str, *, slot: int, at_once: int) -> int:
    """Runs one run to its end with `Driver`; the run is killed when this process's parent has ended.

    Args:
        folder: the sweep's folder.
        slot: the run's slot, 0 to `at_once` - 1, which determines its share of the machine.
        at_once: the number of runs at a time.

    Raises:
        UserError: the folder holds no sweep, or the sweep does not have this run.
    """
    parent = os.getppid()
    sweep = read_sweep(folder)
    cell = next((cell for cell in sweep.cells() if cell.name == name), None)
    if cell is None:
        raise UserError(f"the sweep in {folder} has no run {name}: its runs are listed in sweep.json")
    run = load_recipe(sweep.recipe, sweep.assignments_of(cell))
    num_processes, gpus = run.parallel.num_processes, visible_gpus()

    def environment_of(_: int, __: Cell) -> dict[str, str]:
        return share_of_machine(slot, at_once=at_once, num_processes=num_processes, gpus=gpus)

    progress = SweepProgress(folder, {name: run.num_updates}, Display(silent=False))
    cells = [] if status(folder / name).state == "finished" else [cell]
    driver = Driver(folder, sweep, cells, progress, at_once=1, environment_of=environment_of, parent=parent)
    try:
        return driver.run()
    finally:
        progress.close()


def main() -> int:
    """Runs the command line. A UserError becomes one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="megatron_sspo.sweep.task", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--place", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1)
    options = parser.parse_args()
    try:
        prepare_process()
        return run_one(options.folder, options.name, slot=options.place, at_once=options.at_once)
    except UserError as error:
        print(f"megatron-sspo: {error}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
