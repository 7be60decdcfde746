"""`megatron-sspo launch`: checks a recipe and starts it, on this machine, with Slurm or with NeMo-Run."""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_sspo.cli.parser import add_recipe, as_path
from megatron_sspo.errors import UserError
from megatron_sspo.launch import slurm

if TYPE_CHECKING:
    from megatron_sspo.run import Run


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = command.add_argument
    add_recipe(command)
    add("--on", choices=("local", "slurm", "nemo-run"), default="local", help="place of the run (default: %(default)s)")
    add("--check", action="store_true", help="only checks, and prints the memory of each rank")
    add("--dry-run", action="store_true", help="prints the commands instead of running them, and checks")
    add("--resume", type=as_path, metavar="DIR", help="folder of the run to resume (--on local)")
    add("--memory", type=float, metavar="GB", help="memory of one target GPU, to check on a machine without GPUs")
    add("--sbatch", default="", metavar="OPTIONS", help='options for sbatch: --sbatch="--nodes=6 --time=8:00:00"')
    add("--script", default=slurm.SCRIPT, help="script of slurm/ to submit (default: %(default)s)")
    add("--executor", choices=("slurm", "local"), default="slurm", help="NeMo-Run executor (default: %(default)s)")
    add = command.add_argument_group(
        "rehearsal", "runs an update's code as one rank of each pipeline stage, without GPUs and without the memory"
    ).add_argument
    add("--rehearse", action="store_true", help="only rehearses: prints memory, messages, FLOPs and a predicted time")
    add("--stage", type=int, metavar="S", help="rehearse only pipeline stage S, from 1 (default: every stage)")
    add("--rank", type=int, metavar="R", help="rehearse only rank R")
    add("--machine", default="h100x8", metavar="NAME", help="machine of the predicted time (default: %(default)s)")
    add(
        "--skew",
        type=float,
        default=1.0,
        metavar="X",
        help="how many times as often the experts of the first expert rank are chosen as the others (default: 1)",
    )
    most = "(default: as many as it may have)"
    add("--prompt-tokens", type=int, default=0, metavar="N", help=f"tokens of each prompt {most}")
    add("--response-tokens", type=int, default=0, metavar="N", help=f"tokens of each response {most}")
    add(
        "--microbatches",
        type=int,
        default=0,
        metavar="N",
        help="the largest number of microbatches to rehearse (default: enough to fill the pipeline, and one more)",
    )
    add("--output", type=as_path, metavar="FILE", help="the JSON to write (default: OUTPUT/NAME.rehearsal.json)")


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Checks the run, starts it, and returns the exit code."""
    from megatron_sspo.processes import local
    from megatron_sspo.recipe import load_recipe

    _check_options(options)
    if options.rehearse:
        from sspo_rehearsal.command import rehearse

        return rehearse(options, load_recipe(options.recipe, options.set))
    job = _job(options) if options.on != "local" else None
    on_slurm = job if options.executor == "slurm" else None
    of_script = on_slurm.script_assignments() if on_slurm is not None else []
    run = load_recipe(options.recipe, [*of_script, *options.set])
    resume = ["--resume", str(options.resume)] if options.resume else []
    command = ["train", options.recipe, *(part for value in options.set for part in ("--set", value)), *resume]
    if options.dry_run and job is None:
        print("\n".join(local.describe_commands(command, run.parallel.num_processes)), flush=True)
    elif options.dry_run and options.on == "slurm" and job is not None:
        print(job.describe(), flush=True)
    elif options.dry_run and job is not None and (code := _nemo_run(options, job)):
        return code
    _check(run, options, on_slurm)
    if options.dry_run or options.check:
        return 0
    if job is None:
        return local.launch(command, run.parallel.num_processes)
    return job.submit() if options.on == "slurm" else _nemo_run(options, job)


def _check_options(options: argparse.Namespace) -> None:
    if options.on == "local" and (options.sbatch or options.script != slurm.SCRIPT):
        raise UserError("--sbatch and --script are for Slurm jobs: add --on slurm, or nemo-run")
    if options.on != "local" and options.resume:
        raise UserError("--resume is for --on local: set RUN to the run's folder instead, which the job then resumes")
    if options.rehearse and (options.on != "local" or options.resume or options.check or options.dry_run):
        raise UserError("--rehearse starts no run and checks none: leave out --on, --resume, --check and --dry-run")


def _job(options: argparse.Namespace) -> slurm.SlurmJob:
    from megatron_sspo.recipe import absolute_name

    variables = slurm.variables_from_environment()
    project = slurm.project_folder(variables)
    return slurm.SlurmJob(
        recipe=options.recipe if Path.cwd() == project else absolute_name(options.recipe),
        assignments=options.set,
        options=slurm.split_options(options.sbatch),
        variables=variables,
        script=options.script,
    )


def _check(run: "Run", options: argparse.Namespace, job: slurm.SlurmJob | None) -> None:
    """Checks the run and raises UserError if a check fails; with --check, also prints the report."""
    import torch

    from megatron_sspo.evaluation.parts import open_parts
    from megatron_sspo.launch.report import report
    from megatron_sspo.preflight.free_memory import free_memory
    from megatron_sspo.preflight.preflight import preflight
    from megatron_sspo.preflight.resources import (
        check_host_memory,
        check_memory,
        memory_of_rank,
        read_model_config,
    )
    from megatron_sspo.preflight.unread import unread_settings
    from megatron_sspo.run import layouts_of

    resume = options.resume
    if job is not None:
        slurm.check_size(job, {run.parallel.num_processes, *run.layouts})
        folder = job.run_folder
        run = replace(run, output=str(folder.parent), name=folder.name)
        resume = folder if (folder / "config.json").exists() else None  # the job resumes the run there
    log = print if options.check else lambda line: None
    differences = preflight(run, resume=resume, elsewhere=job is not None, log=log)
    if options.check and job is None:
        with open_parts(run):  # as the start of the run does; the engine would start its servers
            pass
    remarks = [f"resumed with another configuration: {line}" for line in differences]
    config = read_model_config(run)
    on_cuda = job is not None or torch.cuda.is_available()
    for in_layout in layouts_of(run).values():
        if options.check:
            print(report(in_layout, config, on_cuda=on_cuda), flush=True)
        if options.memory is not None:
            check_memory(in_layout, config, round(options.memory * 1e9), "a GPU there", on_cuda=True)
    if options.memory is None and job is None:
        check_memory(run, config, *memory_of_rank(1 if on_cuda else run.parallel.num_processes), on_cuda=on_cuda)
        remarks.append(check_host_memory(run, config, run.parallel.num_processes, free_memory(), "this machine"))
    if options.check:
        for remark in remarks:
            print(remark)
        for line in unread_settings(run):
            print(line)
        print("all checks passed; versions, paths and memory are checked again when all ranks have started")


def _nemo_run(options: argparse.Namespace, job: slurm.SlurmJob) -> int:
    """Starts the job with the interpreter that has NeMo-Run; it needs nothing of the trainer's environment."""
    from megatron_sspo.processes.parent import exit_with_parent

    python = os.environ.get("NEMO_RUN_PYTHON") or str(job.project / ".venv-nemo-run" / "bin" / "python")
    if not Path(python).exists():
        raise UserError(
            f"there is no NeMo-Run at {python}: make install-nemo-run, or set NEMO_RUN_PYTHON to an interpreter "
            "that has it"
        )
    # not `-m`, because experiments store classes by their module
    start = "import sys; from megatron_sspo.launch.nemo_run import main; sys.exit(main())"
    command = [python, "-c", start, job.recipe, *(f"--set={assignment}" for assignment in job.assignments)]
    command += [f"--script={job.script}", f"--sbatch={shlex.join(job.options)}", f"--executor={options.executor}"]
    environment = {**os.environ, "PYTHONPATH": str(job.project), **job.environment}
    if options.executor == "local" or "CONTAINER" not in job.variables:
        environment.setdefault("PYTHON", sys.executable)
    environment.setdefault("COLUMNS", "200")  # the width to which NeMo-Run wraps what it prints, scripts included
    return subprocess.run(
        [*command, *(["--dry-run"] if options.dry_run else [])],
        cwd=job.project,
        env=environment,
        preexec_fn=partial(exit_with_parent, os.getpid()),
    ).returncode
