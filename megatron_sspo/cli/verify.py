"""`megatron-sspo verify`: compares two model folders of either kind, bit by bit."""

import argparse

from megatron_sspo.cli.parser import add_config, as_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = command.add_argument
    add("first", type=as_path, metavar="A")
    add("second", type=as_path, metavar="B")
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
