"""`megatron-sspo convert`: converts a Hugging Face folder to a Megatron checkpoint, or the reverse."""

import argparse

from megatron_sspo.cli.parser import add_config, not_empty


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = command.add_argument
    add(
        "source",
        type=not_empty,
        metavar="SRC",
        help="a Hugging Face folder, a torch_dist folder, a run's checkpoint, or a folder of Megatron-LM's checkpoints",
    )
    add("destination", type=not_empty, metavar="DST", help="the new folder")
    add("--dtype", choices=("bfloat16", "float16", "float32"), help="new data type (default: the source's)")
    add("--quantize", choices=("fp8",), help="writes a Hugging Face folder in FP8 with scales of blocks of 128 × 128")
    add_config(command)
    add("--to", choices=("megatron", "hf"), help="the target format; a source that has it already is an error")


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Converts the folder, and prints what was made."""
    import torch

    from megatron_sspo.weights.conversion.convert import convert, quantize

    if options.quantize:
        summary = quantize(options.source, options.destination, config_folder=options.config)
    else:
        summary = convert(
            options.source,
            options.destination,
            dtype=getattr(torch, options.dtype) if options.dtype else None,
            config_folder=options.config,
            to=options.to,
        )
    kind = "Megatron checkpoint" if summary.direction == "megatron" else "Hugging Face folder"
    print(f"{options.destination}: a {kind} of {summary.num_tensors:,} tensors, {summary.num_bytes / 1e9:.2f} GB")
    return 0
