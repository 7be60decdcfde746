"""`megatron-sspo plot`."""

import argparse
from pathlib import Path
from typing import Any

from megatron_sspo.cli.parser import add_command


def add_arguments(commands: Any, *, run: Any) -> None:
    """The arguments of the command."""
    command = add_command(commands, "plot", run=run, help="curves of one or several runs, or `plot gates`")
    command.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs, or the word gates")
    command.add_argument(
        "--output", type=Path, metavar="PNG", help="default: curves.png in the (first) run, or gates.png"
    )


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Draws, and prints the path of the picture."""
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
