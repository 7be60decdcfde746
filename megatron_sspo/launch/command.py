"""`megatron-sspo launch`: checks a run, and starts it here, by Slurm, or by NeMo-Run."""

import argparse
import math
from dataclasses import replace
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.launch import slurm
from megatron_sspo.launch.nemo_run_process import run_module
from megatron_sspo.processes import local
from megatron_sspo.run import Run, layouts_of

_MAX_SKEW = 1e6


def launch(options: argparse.Namespace) -> int:
    """Checks a run, starts it, and returns the exit code.

    Raises:
        UserError: a check fails.
    """
    from megatron_sspo.recipe import load_recipe

    _check_options(options)
    uses_slurm = slurm.uses_slurm(options)
    job = _job(options) if options.on != "local" else None
    of_script = job.script_assignments() if job is not None and uses_slurm else []
    if options.rehearse:
        return _rehearsal(options, load_recipe(options.recipe, options.set))
    run, resume = load_recipe(options.recipe, [*of_script, *options.set]), options.resume
    if uses_slurm and job is not None:
        run, resume = _with_run_folder(run, job.run_folder)
    if options.dry_run and (code := _print_commands(options, job, run)):
        return code
    _check(run, resume, options, job if uses_slurm else None)
    if options.dry_run or options.check:
        return 0
    if job is None:
        return local.launch(_train_arguments(options), run.parallel.num_processes)
    if options.on == "slurm":
        return job.submit()
    return _nemo_run(options, job)


def _rehearsal(options: argparse.Namespace, run: Run) -> int:
    try:
        from sspo_rehearsal.command import rehearse
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("sspo_rehearsal"):
            raise
        raise UserError("--rehearse needs a library that is not installed: pip install sspo-rehearsal") from error
    return rehearse(options, run)


def _check_options(options: argparse.Namespace) -> None:
    if options.on == "local" and (options.sbatch or options.script != slurm.SCRIPT):
        raise UserError("--sbatch and --script are for Slurm jobs: add --on slurm or --on nemo-run, or leave them out")
    if options.memory is not None and not 0 < options.memory < math.inf:
        raise UserError(f"--memory is {options.memory:g}: the memory of a GPU in GB is a finite number above 0")
    if options.on != "local" and options.resume:
        raise UserError("--resume is for --on local: set RUN to the run's folder instead, which the job then resumes")
    _check_rehearsal(options)
    if options.on != "nemo-run" and options.executor != "slurm":
        raise UserError("--executor is NeMo-Run's: add --on nemo-run, or leave it out")


def _check_rehearsal(options: argparse.Namespace) -> None:
    """Checks the options of a rehearsal, and that there are none without one."""
    given = [name for name, default in options.of_rehearsal.items() if getattr(options, name) != default]
    if not options.rehearse:
        if given:
            raise UserError(f"--{given[0].replace('_', '-')} is for a rehearsal: add --rehearse, or leave it out")
        return
    if options.on != "local" or options.resume:
        raise UserError("--rehearse runs on this machine, from the start: leave out --on and --resume")
    if options.check or options.dry_run or options.memory is not None:
        raise UserError("--rehearse starts no run and checks none: leave out --check, --dry-run and --memory")
    if options.stage is not None and options.rank is not None:
        raise UserError("--stage and --rank both name what to rehearse: leave one of them out")
    if options.output is not None and options.output.is_dir():
        raise UserError(f"--output is the folder {options.output}: name a file in it")
    if not 1 / _MAX_SKEW <= options.skew <= _MAX_SKEW:
        raise UserError(
            f"--skew is {options.skew:g}: experts are chosen by that finite factor, from {1 / _MAX_SKEW:g} to "
            f"{_MAX_SKEW:g}"
        )
    for name in ("prompt_tokens", "response_tokens", "microbatches"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}: it must not be negative")


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


def _with_run_folder(run: Run, folder: Path) -> tuple[Run, Path | None]:
    """Returns the run with the job's folder, and that folder if it holds a run, which the job then resumes."""
    named = replace(run, output=str(folder.parent), name=folder.name)
    return named, folder if (folder / "config.json").exists() else None


def _print_commands(options: argparse.Namespace, job: slurm.SlurmJob | None, run: Run) -> int:
    """Prints what would be started; returns an exit code, which is not 0 if NeMo-Run fails."""
    if job is not None and options.on == "nemo-run":
        return _nemo_run(options, job)
    if job is None:
        print("\n".join(local.describe_commands(_train_arguments(options), run.parallel.num_processes)), flush=True)
    else:
        print(job.describe(), flush=True)
    return 0


def _check(run: Run, resume: Path | None, options: argparse.Namespace, job: slurm.SlurmJob | None) -> None:
    """Checks the run and raises UserError if a check fails; with --check, also prints the report."""
    import torch

    from megatron_sspo.evaluation.parts import open_parts
    from megatron_sspo.launch.report import report
    from megatron_sspo.preflight.preflight import preflight
    from megatron_sspo.preflight.resources import check_memory, memory_of_rank, read_model_config
    from megatron_sspo.preflight.unread import unread_settings

    if job is not None:
        slurm.check_size(job, {run.parallel.num_processes, *run.layouts})
    log = print if options.check else lambda line: None
    remarks = preflight(run, resume=resume, elsewhere=job is not None, log=log)
    if options.check and job is None:
        with open_parts(run):  # as the start of the run does; the engine would start its servers
            pass
    config = read_model_config(run)
    on_cuda = job is not None or torch.cuda.is_available()
    for in_layout in layouts_of(run).values():
        if options.check:
            print(report(in_layout, config, on_cuda=on_cuda), flush=True)
        if options.memory is not None:
            check_memory(in_layout, config, round(options.memory * 1e9), "a GPU there", on_cuda=True)
    if options.memory is None and job is None:
        check_memory(run, config, *memory_of_rank(1 if on_cuda else run.parallel.num_processes), on_cuda=on_cuda)
    if options.check:
        for remark in remarks:
            print(f"resumed with another configuration: {remark}")
        for line in unread_settings(run, config):
            print(line)
        print("all checks passed; versions, paths and memory are checked again when all ranks have started")


def _train_arguments(options: argparse.Namespace) -> list[str]:
    resume = ["--resume", str(options.resume)] if options.resume else []
    return ["train", options.recipe, *(part for value in options.set for part in ("--set", value)), *resume]


def _nemo_run(options: argparse.Namespace, job: slurm.SlurmJob) -> int:
    """Starts the job with the interpreter that has NeMo-Run; it needs nothing of the trainer's environment."""
    arguments = [job.recipe, *(f"--set={assignment}" for assignment in job.assignments), f"--script={job.script}"]
    module = "megatron_sspo.launch.nemo_run"
    return run_module(module, arguments, job, executor=options.executor, dry_run=options.dry_run)
