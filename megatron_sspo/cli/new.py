"""`megatron-sspo new`: writes a project to edit: a recipe, a reward, data, a tiny model, Slurm scripts."""

import argparse
import shlex

from megatron_sspo.cli.parser import as_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    command.add_argument("folder", type=as_path, metavar="DIR", help="the new folder")


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Writes the project, and prints the command that trains it."""
    from megatron_sspo.project.new import write_project

    write_project(options.folder)
    folder = str(options.folder)
    place = f"./{folder}" if folder.startswith("-") else folder  # cd would take a leading - for an option
    print(f"cd {shlex.quote(place)} && megatron-sspo train recipe.py")
    return 0
