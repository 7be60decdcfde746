"""`megatron-sspo evaluate`."""

import argparse
from pathlib import Path
from typing import Any

from megatron_sspo.cli.parser import add_command, add_config, add_set


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    command = add_command(commands, "evaluate", run=run, help="pass@1, avg@k and pass@k of a model on held-out sets")
    command.add_argument(
        "model", type=Path, help="a Hugging Face folder, a checkpoint, or the folder of a run, whose newest is taken"
    )
    command.add_argument(
        "--sets", default="", metavar="A,B", help="of the recipe or of the paper; default: all of the recipe"
    )
    command.add_argument(
        "--recipe",
        default="megatron_sspo.paper:evaluation",
        help="whose sets, engine and sampling are used (default: %(default)s, greedy and zero-shot as in the paper)",
    )
    command.add_argument("--samples", type=int, metavar="K", help="adds avg@K and pass@K at the recipe's temperature")
    command.add_argument(
        "--output", type=Path, metavar="DIR", help="for answers and numbers; goes on with what is there"
    )
    command.add_argument("--name", default="", help="of the model in tables (default: its path)")
    add_config(command)
    add_set(command)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Evaluates the model, and prints the table."""
    from megatron_sspo.evaluation.command import evaluate_model
    from megatron_sspo.recipe import load_recipe

    evaluate_model(
        load_recipe(options.recipe, options.set),
        options.model,
        names=[name.strip() for name in options.sets.split(",") if name.strip()],
        samples=options.samples,
        output=options.output,
        label=options.name,
        config_folder=options.config,
    )
    return 0
