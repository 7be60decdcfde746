"""`megatron-sspo serve`."""

import argparse
from pathlib import Path
from typing import Any

from megatron_sspo.cli.parser import add_command, add_recipe


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    help = "a recipe's rollout servers on this machine, for a trainer elsewhere"
    command = add_command(commands, "serve", run=run, help=help)
    add_recipe(command, "whose model and rollouts.options are used")
    command.add_argument("--folder", type=Path, required=True, help="for logs, and for their `urls` when they answer")
    command.add_argument("--address", default="127.0.0.1", help="of this machine, to listen on (default: %(default)s)")
    command.add_argument(
        "--port", type=int, default=30000, help="of the first server, the next for the next (%(default)s)"
    )


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Starts the servers and runs until it is stopped."""
    from megatron_sspo.recipe import load_recipe
    from megatron_sspo.rollout.serving import serve

    run = load_recipe(options.recipe, options.set)
    serve(run, address=options.address, first_port=options.port, folder=options.folder)
    return 0
