"""`megatron-sspo`: train, launch, serve, evaluate, table, convert, verify, plot."""

import argparse
import os
import sys
import warnings
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.launch import command, local
from megatron_sspo.processes.output import outlive_closed_output


def main(arguments: list[str] | None = None) -> int:
    """The command line. A UserError becomes one line on stderr and exit code 2; Ctrl-C is exit code 130."""
    outlive_closed_output()
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    try:
        return options.run(options, arguments)
    except UserError as error:
        local.report(str(error))  # where `launch` started this process, it ends here
        rank = os.environ.get("RANK", "0")
        where = f" (process {rank})" if rank != "0" else ""
        print(f"megatron-sspo{where}: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="megatron-sspo", description="Soft Sequence Policy Optimization on Megatron-Core."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a policy by a recipe")
    train.add_argument("recipe", help="a Python file, file.py:function, or package.module:function that returns a Run")
    _add_set(train)
    train.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in this folder")
    train.set_defaults(run=_train)

    command.add_parser(commands, _add_set)

    serve = commands.add_parser("serve", help="a recipe's rollout servers on this machine, for a trainer elsewhere")
    serve.add_argument("recipe", help="whose model and rollouts.options are used")
    _add_set(serve)
    serve.add_argument("--folder", type=Path, required=True, help="for logs, and for their `urls` when they answer")
    serve.add_argument("--address", default="127.0.0.1", help="of this machine, to listen on (default: %(default)s)")
    serve.add_argument(
        "--port", type=int, default=30000, help="of the first server, the next for the next (%(default)s)"
    )
    serve.set_defaults(run=_serve)

    evaluate = commands.add_parser("evaluate", help="pass@1, avg@k and pass@k of a model on held-out sets")
    evaluate.add_argument(
        "model", type=Path, help="a Hugging Face folder, a checkpoint, or the folder of a run, whose newest is taken"
    )
    evaluate.add_argument(
        "--sets", default="", metavar="A,B", help="of the recipe or of the paper; default: all of the recipe"
    )
    evaluate.add_argument(
        "--recipe",
        default="megatron_sspo.paper:evaluation",
        help="whose sets, engine and sampling are used (default: %(default)s, greedy and zero-shot as in the paper)",
    )
    evaluate.add_argument("--samples", type=int, metavar="K", help="adds avg@K and pass@K at the recipe's temperature")
    evaluate.add_argument(
        "--output", type=Path, metavar="DIR", help="for answers and numbers; goes on with what is there"
    )
    evaluate.add_argument("--name", default="", help="of the model in tables (default: its path)")
    _add_config(evaluate)
    _add_set(evaluate)
    evaluate.set_defaults(run=_evaluate)

    table = commands.add_parser("table", help="evaluations side by side, as in the paper, in Markdown")
    table.add_argument("folders", nargs="+", metavar="[NAME=]DIR", help="of evaluations, the base model's first")
    table.set_defaults(run=_table)

    convert = commands.add_parser("convert", help="a Hugging Face folder to a Megatron checkpoint, or the reverse")
    convert.add_argument(
        "source", metavar="SRC", help="a Hugging Face folder, a torch_dist folder, or a checkpoint of a run"
    )
    convert.add_argument("destination", metavar="DST", help="the folder to make")
    convert.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), help="default: every byte as it is")
    _add_config(convert)
    convert.add_argument("--to", choices=("megatron", "hf"), help="refuses a source of the other kind")
    convert.add_argument("--threads", type=int, metavar="N", help="default: as many as cores, at most 4")
    convert.set_defaults(run=_convert)

    verify = commands.add_parser("verify", help="compares two model folders of either kind, bit by bit")
    verify.add_argument("first", metavar="A")
    verify.add_argument("second", metavar="B")
    _add_config(verify)
    verify.set_defaults(run=_verify)

    plot = commands.add_parser("plot", help="curves of one or several runs, or `plot gates`")
    plot.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs, or the word gates")
    plot.add_argument("--output", type=Path, metavar="PNG", help="default: curves.png in the (first) run, or gates.png")
    plot.set_defaults(run=_plot)
    return parser


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="changes the recipe: rollouts.group_size=16"
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="DIR",
        help="the model's Hugging Face folder, for a Megatron checkpoint that has no config.json",
    )


def _train(options: argparse.Namespace, arguments: list[str]) -> int:
    from megatron_sspo.preflight import preflight
    from megatron_sspo.recipe import load_recipe

    run = load_recipe(options.recipe, options.set)
    if not local.is_child():  # what `launch` starts has been checked; what torchrun or srun starts has not
        preflight(run, resume=options.resume)
        if run.parallel.num_processes > 1 and not local.is_launched():
            return local.launch(arguments, run.parallel.num_processes)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")  # about what is not installed
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(megatron\.core|torch\.distributed)")
    from megatron_sspo.loop import train

    return train(run, resume=options.resume)


def _serve(options: argparse.Namespace, _: list[str]) -> int:
    from megatron_sspo.recipe import load_recipe
    from megatron_sspo.rollout.serving import serve

    run = load_recipe(options.recipe, options.set)
    serve(run, address=options.address, first_port=options.port, folder=options.folder)
    return 0


def _evaluate(options: argparse.Namespace, _: list[str]) -> int:
    from megatron_sspo.evaluation.command import evaluate_model
    from megatron_sspo.recipe import load_recipe

    evaluate_model(
        load_recipe(options.recipe, options.set),
        options.model,
        names=[name.strip() for name in options.sets.split(",") if name.strip()],
        samples=options.samples,
        output=options.output,
        label=options.name,
        companions=options.config,
    )
    return 0


def _table(options: argparse.Namespace, _: list[str]) -> int:
    from megatron_sspo.evaluation.command import print_table

    print_table(options.folders)
    return 0


def _convert(options: argparse.Namespace, _: list[str]) -> int:
    import torch

    from megatron_sspo.weights.convert import convert

    summary = convert(
        options.source,
        options.destination,
        dtype=getattr(torch, options.dtype) if options.dtype else None,
        companions=options.config,
        to=options.to,
        num_threads=options.threads,
    )
    kind = "Megatron checkpoint" if summary.direction == "megatron" else "Hugging Face folder"
    print(f"{options.destination}: a {kind} of {summary.num_tensors:,} tensors, {summary.num_bytes / 1e9:.2f} GB")
    return 0


def _verify(options: argparse.Namespace, _: list[str]) -> int:
    from megatron_sspo.weights.verify import verify

    found = verify(options.first, options.second, companions=options.config)
    for difference in found.differences:
        print(difference)
    if found.differences:
        print(f"{len(found.differences):,} tensors differ")
        return 1
    print(f"equal to the bit: {found.num_tensors:,} tensors, {found.num_bytes / 1e9:.2f} GB")
    return 0


def _plot(options: argparse.Namespace, _: list[str]) -> int:
    if options.runs == ["gates"]:
        from megatron_sspo.plots.gates import plot_gates

        path = options.output or Path("gates.png")
        plot_gates(path)
    else:
        from megatron_sspo.plots.curves import plot_runs

        folders = [Path(run) for run in options.runs]
        path = options.output or folders[0] / "curves.png"
        plot_runs(folders, path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
