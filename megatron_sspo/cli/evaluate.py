"""`megatron-sspo evaluate`: evaluates a model on held-out sets: pass@1, avg@k, pass@k."""

import argparse

from megatron_sspo.cli.parser import add_config, add_set, as_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = command.add_argument
    add(
        "model",
        type=as_path,
        help="a Hugging Face folder, a checkpoint, or the folder of a run (its model or newest checkpoint)",
    )
    add(
        "--sets", default="", metavar="A,B", help="sets of the recipe or of the paper (default: all sets of the recipe)"
    )
    add(
        "--recipe",
        default="megatron_sspo.paper:evaluation",
        help="recipe with the sets, engine and sampling (default: %(default)s, greedy and zero-shot as in the paper)",
    )
    add("--samples", type=int, metavar="K", help="number of samples for avg@K and pass@K, at the recipe's temperature")
    add(
        "--output",
        type=as_path,
        metavar="DIR",
        help="folder for answers and metrics; an evaluation already there is continued",
    )
    add("--name", default="", help="name of the model in tables (default: its path)")
    add_config(command)
    add_set(command)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Evaluates the model, and prints the table."""
    from megatron_sspo.config.kinds import LARGEST
    from megatron_sspo.evaluation.command import evaluate_model
    from megatron_sspo.recipe import load_recipe

    # no trainer has to hold the sequences, so its microbatches do not limit them
    assignments = [f"tokens_per_microbatch={LARGEST}", *options.set]
    evaluate_model(
        load_recipe(options.recipe, assignments),
        options.model,
        names=[name.strip() for name in options.sets.split(",")] if options.sets else [],
        samples=options.samples,
        output=options.output,
        label=options.name,
        config_folder=options.config,
    )
    return 0
