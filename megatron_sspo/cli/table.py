"""`megatron-sspo table`."""

import argparse
from typing import Any

from megatron_sspo.cli.parser import add_command


def add_arguments(commands: Any, *, run: Any) -> None:
    """The arguments of the command."""
    command = add_command(commands, "table", run=run, help="evaluations side by side, as in the paper, in Markdown")
    command.add_argument("folders", nargs="+", metavar="[NAME=]DIR", help="of evaluations, the base model's first")


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Prints the table."""
    from megatron_sspo.evaluation.command import print_table

    print_table(options.folders)
    return 0
