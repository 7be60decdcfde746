"""The parser of all commands, and arguments that several commands share."""

import argparse
import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from megatron_sspo import __version__

COMMANDS = (
    "new",
    "train",
    "launch",
    "sweep",
    "serve",
    "evaluate",
    "table",
    "convert",
    "verify",
    "plot",
)  # in the order of --help

RECIPE = "a Python file, file.py:function, or package.module:function that returns a Run"
_FIELDS = (
    f"FIELD is a field of Run by its path, such as optimizer.lr: all of them, with their defaults, are in "
    f"{Path(__file__).parents[1] / 'run.py'}."
)


class Parser(argparse.ArgumentParser):
    """A parser that names an unknown option even if a required argument is missing too, and refuses `--option=--`."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses known arguments as argparse does; keeps all arguments for the message of `error`.

        Python 3.11 drops a value `--` and gives an option an empty list, which would be taken for a value left out.
        """
        self._given = args or ()
        for name in map(_name, self._given):
            if f"{name}=--" in self._given:
                self.error(f"argument {name}: '--' is not a value")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints the message, or the first unknown option if arguments are missing, and exits with code 2."""
        unknown = next((name for name in map(_name, self._given) if name and not self._is_known(name)), None)
        if unknown is None or not message.startswith("the following arguments are required"):
            super().error(message)
        close = difflib.get_close_matches(unknown, self._option_string_actions, n=1)
        super().error(f"there is no option {unknown}" + (f": did you mean {close[0]}?" if close else ""))

    def _is_known(self, name: str) -> bool:
        return any(known.startswith(name) for known in self._option_string_actions)


def parser() -> Parser:
    """Returns the parser of `megatron-sspo`; each command sets `run`, the function that executes it."""
    top_level = Parser(prog="megatron-sspo", description="Soft Sequence Policy Optimization on Megatron-Core.")
    top_level.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top_level.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"megatron_sspo.cli.{name}")
        module.add_arguments(commands, run=module.run)
    return top_level


def add_command(commands: Any, name: str, *, run: Any, help: str, extra: str = "train") -> argparse.ArgumentParser:
    """Adds one command and returns its parser.

    Args:
        extra: the extra of the package that the command needs, which is checked before `run` is called; "": none.
    """
    command = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    command.set_defaults(run=run, command=name, extra=extra)
    return command


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
        help="the model's Hugging Face folder, for a Megatron checkpoint that has no config.json",
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


def check_measure(options: argparse.Namespace, command: str) -> None:
    """Checks that the options of a sweep are not given for something else.

    Raises:
        UserError: `--measure` or `--compare` is given.
    """
    if options.measure or options.compare:
        from megatron_sspo.errors import UserError

        raise UserError(f"--measure and --compare are for the folder of a sweep: megatron-sspo {command} SWEEP")


def _name(argument: str) -> str:
    """Returns the name of an option; "" for an argument that is not an option."""
    is_option = argument.startswith("-") and argument not in ("-", "--")
    return argument.partition("=")[0] if is_option else ""
