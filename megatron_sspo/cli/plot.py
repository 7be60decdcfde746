"""`megatron-sspo plot`."""

import argparse
from pathlib import Path
from typing import Any

from megatron_sspo.cli.parser import add_command, add_measure, check_measure


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    command = add_command(commands, "plot", run=run, help="curves of runs or of a sweep, or `plot gates`")
    command.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs, that of a sweep, or gates")
    command.add_argument(
        "--output", type=Path, metavar="PNG", help="default: curves.png in the (first) run, or gates.png"
    )
    add_measure(command)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Draws the picture, and prints its path."""
    from megatron_sspo.sweep.folder import is_sweep

    if len(options.runs) == 1 and is_sweep(Path(options.runs[0])):
        from megatron_sspo.plots.sweep import plot_sweep

        path = options.output or Path(options.runs[0]) / "curves.png"
        plot_sweep(Path(options.runs[0]), path, measure=options.measure, compare=options.compare)
        print(path)
        return 0
    check_measure(options, "plot")
    if options.runs == ["gates"]:
        from megatron_sspo.plots.gates import plot_gates

        path = options.output or Path("gates.png")
        plot_gates(path)
    else:
        from megatron_sspo.plots.curves import plot_runs

        folders = [Path(run) for run in options.runs]
        path = options.output or folders[0] / "curves.png"
        plot_runs(folders, path)
    print(path)
    return 0
