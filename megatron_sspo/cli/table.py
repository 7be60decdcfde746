"""`megatron-sspo table`: prints a table of evaluations as in the paper, or of a sweep."""

import argparse
from pathlib import Path

from megatron_sspo.cli.parser import add_measure, not_empty
from megatron_sspo.plots import lab


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    command.add_argument(
        "folders",
        nargs="+",
        type=not_empty,
        metavar="[NAME=]DIR",
        help="folders of evaluations, the base model first; or the folder of one sweep",
    )
    add_measure(command)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Prints the table, in Markdown."""
    folder = Path(options.folders[0])
    if len(options.folders) == 1 and (folder / "sweep.json").is_file():
        results = lab.call("results.read_results", folder, measure=options.measure, compare=options.compare)
        print(lab.call("table.sweep_table", results), end="")
        return 0
    print(lab.call("evaluations.evaluations_table", options.folders), end="")
    return 0
