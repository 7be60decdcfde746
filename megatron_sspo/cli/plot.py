"""`megatron-sspo plot`."""

import argparse
from pathlib import Path
from typing import Any

from megatron_sspo.cli import lab
from megatron_sspo.cli.parser import add_command, add_measure, as_path, check_measure, not_empty


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    command = add_command(
        commands, "plot", run=run, help="plots the curves of runs or of a sweep, or with `plot gates` the gates"
    )
    command.add_argument(
        "runs", nargs="+", type=not_empty, metavar="RUN", help="folders of runs, the folder of one sweep, or gates"
    )
    command.add_argument(
        "--output",
        type=as_path,
        metavar="PNG",
        help="picture to write (default: curves.png in the first folder, or gates.png)",
    )
    command.add_argument(
        "--serve", action="store_true", help="serve a page of the runs that grows while they go on, on this machine"
    )
    command.add_argument("--port", type=int, metavar="N", help="port of the page (default: 8060; 0 takes a free one)")
    add_measure(command)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Draws the picture and prints its path, or serves the page until Ctrl-C."""
    if options.serve or options.port is not None:
        return _serve(options)
    first = Path(options.runs[0])
    if len(options.runs) == 1 and (first / "sweep.json").is_file():
        path = options.output or first / "curves.png"
        lab.call("figure.plot_sweep", first, path, measure=options.measure, compare=options.compare)
        print(path)
        return 0
    check_measure(options, "plot")
    if options.runs == ["gates"]:
        from megatron_sspo.plots.gates import plot_gates

        path = options.output or Path("gates.png")
        plot_gates(path)
    else:
        from megatron_sspo.plots.curves import plot_runs

        path = options.output or first / "curves.png"
        plot_runs([Path(run) for run in options.runs], path)
    print(path)
    return 0


def _serve(options: argparse.Namespace) -> int:
    from megatron_sspo.errors import UserError

    check_measure(options, "plot")
    if not options.serve:
        raise UserError("--port is for the page: add --serve")
    if options.output is not None:
        raise UserError("--output is for a picture, and --serve draws none: leave out one of them")
    port = 8060 if options.port is None else options.port
    lab.call("live.server.serve", [Path(run) for run in options.runs], port)
    return 0
