"""`megatron-sspo verify`."""

import argparse
from typing import Any

from megatron_sspo.cli.parser import add_command, add_config, as_path


def add_arguments(commands: Any, *, run: Any) -> None:
    """Adds the arguments of the command."""
    command = add_command(commands, "verify", run=run, help="compares two model folders of either kind, bit by bit")
    command.add_argument("first", type=as_path, metavar="A")
    command.add_argument("second", type=as_path, metavar="B")
    add_config(command)


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Prints each tensor that differs; returns exit code 1 if there is one."""
    from megatron_sspo.weights.conversion.verify import verify

    found = verify(options.first, options.second, config_folder=options.config)
    for difference in found.differences:
        print(difference)
    if found.differences:
        print(f"{len(found.differences):,} tensors differ")
        return 1
    print(f"bitwise equal: {found.num_tensors:,} tensors, {found.num_bytes / 1e9:.2f} GB")
    return 0
