"""The parser of all commands, and arguments that several commands share."""

import argparse
import importlib
from pathlib import Path

from megatron_sspo import __version__

# in the order of --help
COMMANDS = ("new", "train", "launch", "sweep", "serve", "evaluate", "table", "convert", "verify", "plot")

RECIPE = "a Python file, file.py:function, or package.module:function that returns a Run"
_FIELDS = (
    f"FIELD is a field of Run by its path, such as optimizer.lr: all of them, with their defaults, are in "
    f"{Path(__file__).parents[1] / 'run.py'}."
)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of `megatron-sspo`; each command sets `run`, the function that executes it."""
    top_level = argparse.ArgumentParser(
        prog="megatron-sspo", description="Soft Sequence Policy Optimization on Megatron-Core."
    )
    top_level.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top_level.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"megatron_sspo.cli.{name}")
        help = str(module.__doc__).split("`: ")[1].rstrip().removesuffix(".")
        command = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        # the extra of the package is for the message if a module of the command is missing
        command.set_defaults(run=module.run, command=name, extra="sglang-client" if name == "serve" else "train")
        module.add_arguments(command)
    return top_level


def add_recipe(command: argparse.ArgumentParser, help: str = RECIPE) -> None:
    """Adds the recipe argument and the `--set` option."""
    command.add_argument("recipe", help=help)
    add_set(command)


def add_set(command: argparse.ArgumentParser) -> None:
    """Adds the `--set` option, which overrides fields of a recipe."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override of a field of the recipe: rollouts.group_size=16",
    )
    command.epilog = _FIELDS


def not_empty(text: str) -> str:
    """Returns a path from the command line. An empty one, of an unset variable, would be the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: write . for the working folder")
    return text


def as_path(text: str) -> Path:
    """Returns a path from the command line as a Path: see `not_empty`."""
    return Path(not_empty(text))


def add_config(command: argparse.ArgumentParser) -> None:
    """Adds the `--config` option: the folder of a model's configuration."""
    command.add_argument(
        "--config",
        type=as_path,
        metavar="DIR",
        help="the model's Hugging Face folder, for a Megatron checkpoint that has no config.json or only adapters",
    )


def add_measure(command: argparse.ArgumentParser) -> None:
    """Adds the options `--measure` and `--compare`, which choose how a sweep's runs are compared."""
    command.add_argument(
        "--measure",
        default="",
        metavar="NAME",
        help="metric that compares the runs of a sweep (default: pass@1 of all sets)",
    )
    command.add_argument(
        "--compare", default="", metavar="FIELD", help="field of a sweep to compare (default: the first varied)"
    )
