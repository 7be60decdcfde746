"""`megatron-sspo plot`: plots the curves of runs or of a sweep, or with `plot gates` the gates."""

import argparse
from pathlib import Path

from megatron_sspo.cli.parser import add_measure, as_path
from megatron_sspo.plots import lab


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = command.add_argument
    add("runs", nargs="+", type=as_path, metavar="RUN", help="folders of runs, the folder of one sweep, or gates")
    add(
        "--output",
        type=as_path,
        metavar="PNG",
        help="picture to write (default: curves.png in the first folder, or gates.png)",
    )
    add("--serve", action="store_true", help="serve a page of the runs that grows while they go on, on this machine")
    add("--port", type=int, default=8060, metavar="N", help="port of the page (default: %(default)s; 0: a free one)")
    add_measure(command)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Draws the picture and prints its path, or serves the page until Ctrl-C."""
    if options.serve:
        lab.call("live.server.serve", options.runs, options.port)
        return 0
    first = options.runs[0]
    path = options.output or first / "curves.png"
    if len(options.runs) == 1 and (first / "sweep.json").is_file():
        lab.call("figure.plot_sweep", first, path, measure=options.measure, compare=options.compare)
    elif options.runs == [Path("gates")]:
        from megatron_sspo.plots.gates import plot_gates

        path = options.output or Path("gates.png")
        with lab.errors_as_user_errors():
            plot_gates(path)
    else:
        lab.call("curves.plot_runs", options.runs, path)
    print(path)
    return 0
