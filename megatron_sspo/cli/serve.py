"""`megatron-sspo serve`: runs a recipe's rollout servers on this machine, for a trainer on other machines."""

import argparse

from megatron_sspo.cli.parser import add_recipe, as_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = command.add_argument
    add_recipe(command, "recipe with the model and rollouts.options")
    add(
        "--folder",
        type=as_path,
        required=True,
        help="folder for the logs, and for the file `urls`, written when all answer",
    )
    add("--address", default="127.0.0.1", help="address of this machine to listen on (default: %(default)s)")
    add("--port", type=int, default=30000, help="port of the first server; the others follow (default: %(default)s)")


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Starts the servers and runs until it is stopped."""
    from megatron_sspo.launch.serve import serve
    from megatron_sspo.recipe import load_recipe

    run = load_recipe(options.recipe, options.set)
    serve(run, address=options.address, first_port=options.port, folder=options.folder)
    return 0
