"""Runs recipes as NeMo-Run experiments. This module needs NeMo-Run, but nothing of the trainer's environment.

    job = SlurmJob(recipe="examples/qwen3_8b_math.py", options=["--nodes=2"], variables={"CONTAINER": "trainer.sqsh"})
    sys.exit(launch(job, slurm_executor(job, account="research", partition="h100")))

An experiment has one task: the job that `sbatch slurm/train.sbatch` submits, with servers on the first nodes of the
allocation and trainers on the others (slurm/README.md). So NeMo-Run submits the job, follows it and records it, and the
nodes need no NeMo-Run. docs/nemo_run.md lists NeMo-Run's unexpected behaviours and how this module handles them.
"""

# If NeMo-Run is not installed, pyright resolves the name nemo_run to this file.
# pyright: reportAttributeAccessIssue=false

import argparse
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nemo_run as run
from nemo_run.config import get_nemorun_home  # pyright: ignore[reportMissingImports]

from megatron_sspo.errors import UserError
from megatron_sspo.launch.slurm import SCRIPT, SlurmJob, split_options, variables_from_environment

TASK = "train"
_STATE_SECONDS = 120.0  # how long to wait until Slurm's accounting has the state of a job that has ended
# Fields of the executor that are numbers; NeMo-Run refuses a number in those of text, such as partition.
_NUMBERS = ("nodes", "ntasks_per_node", "cpus_per_task", "cpus_per_gpu", "gpus_per_node", "gpus_per_task", "segment")
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")

# ------------------------------------------------------------------ executors


def slurm_executor(job: SlurmJob, **fields: Any) -> run.SlurmExecutor:
    """Returns an executor with the sbatch options of the job's script and of the job.

    Args:
        fields: fields of `nemo_run.SlurmExecutor`, such as account, partition, time or tunnel, which take precedence.
    """
    given = job.all_options()
    for name in ("job-name", "output", "open-mode", "requeue"):  # NeMo-Run sets these itself
        given.pop(name, None)
    known, others = {}, {}
    for name, value in given.items():
        field = name.replace("-", "_")
        if field in run.SlurmExecutor.SBATCH_FLAGS and hasattr(run.SlurmExecutor, field):
            known[field] = int(value) if value.isdigit() and field in _NUMBERS else value or True
        else:
            others[name] = value or True
    defaults = {
        "account": None,  # Slurm's default account
        "job_name_prefix": "sspo-",  # otherwise NeMo-Run builds it from the account
        "packager": run.Packager(),  # the job runs in the project
        "tunnel": run.LocalTunnel(job_dir=""),
        "additional_parameters": others,
    }
    return run.SlurmExecutor(**{**defaults, **known, **fields})


# ------------------------------------------------------------------ the task, and its place in the job


def task(job: SlurmJob, executor: run.Executor) -> run.Script:
    """Returns the script that the executor runs: the whole job of slurm/, or locally `megatron-sspo train`."""
    if isinstance(executor, run.SlurmExecutor):
        return run.Script(inline=f"exec bash {shlex.join([job.script, *job.arguments])}\n")
    lines = [
        f"cd {shlex.quote(str(job.project))}",
        f"export PYTHONPATH={shlex.quote(str(job.project))}",
        f"exec {shlex.join([_python(job), '-m', 'megatron_sspo', 'train', *job.arguments])}",
    ]
    return run.Script(inline="\n".join(lines) + "\n")


def _python(job: SlurmJob) -> str:
    """Returns the path of the trainer's interpreter: PYTHON, or that of `make install`."""
    return job.variables.get("PYTHON", str(job.project / ".venv" / "bin" / "python"))


@dataclass(kw_only=True)
class InBatchShell(run.Plugin):
    """A plugin that runs the task in Slurm's batch shell instead of in a step, so that it can save and be requeued.

    NeMo-Run's own script has no trap, so the signal of `--signal=B:USR1@600` would kill it. And Slurm sends the SIGTERM
    of a pre-emption to a step, where the sruns inside kill the processes that they have started.

    Attributes:
        project: the folder with `slurm/`.
        environment: the environment of the job: `SlurmJob.environment`.
    """

    project: str
    environment: dict[str, str] = field(default_factory=dict)

    def setup(self, task: run.Script, executor: run.Executor) -> None:
        """Changes a Slurm executor; a local one needs no change, because it sends SIGTERM to the trainer."""
        if not isinstance(executor, run.SlurmExecutor):
            return
        check_executor(executor)
        exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        # /nemo_run is the experiment's folder, and `nemo experiment logs` looks for files of this name in it
        log = '"/nemo_run/log-${SLURM_JOB_NAME}_${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}.out"'
        lines = [
            "# The batch shell becomes the job, because the script below has no trap for the job's signals.",
            "set +evx",
            f"cd {shlex.quote(self.project)}",
            *exports,
            f"exec >>{log} 2>&1",
            task.inline.strip(),
        ]
        executor.setup_lines = "\n".join(lines)


def check_executor(executor: run.SlurmExecutor) -> None:
    """Raises UserError for settings that NeMo-Run accepts but ignores or treats differently."""
    home = Path(get_nemorun_home()) / "experiments"
    folder = executor.tunnel.job_dir
    is_elsewhere = isinstance(executor.tunnel, run.LocalTunnel) and folder and not Path(folder).is_relative_to(home)
    refused = (
        (executor.heterogeneous, "heterogeneous", "roles share the nodes of one job, by SERVER_NODES"),
        (executor.container_image, "container_image", "containers are given by CONTAINER and SERVER_CONTAINER"),
        (executor.env_vars, "env_vars", "NeMo-Run writes them in capitals and without quotes: set them in the job"),
        (executor.array, "array", "a run is one job: start an experiment for each run"),
        (is_elsewhere, "tunnel.job_dir", "NeMo-Run does not copy its script there: set NEMORUN_HOME to a shared disk"),
    )
    for given, name, why in refused:
        if given:
            raise UserError(f"the executor has {name}, which has to be left out: {why}")


# ------------------------------------------------------------------ experiments


def launch(job: SlurmJob, executor: run.Executor, *, dry_run: bool = False, checked: bool = False) -> int:
    """Runs the job as an experiment until its end, and shows its log meanwhile.

    Args:
        executor: the executor that runs it.
        dry_run: whether to only print what NeMo-Run would submit.
        checked: whether the checks of `megatron-sspo launch --check` have been made already.

    Returns:
        0 if the task has succeeded, otherwise 1. (NeMo-Run itself ends with 0 in both cases.)

    Raises:
        UserError: a check has failed, or the executor has settings that are not supported.
    """
    with run.Experiment(Path(job.recipe.partition(":")[0]).stem) as experiment:
        experiment.add(
            task(job, executor),
            executor=executor,
            name=TASK,
            plugins=[InBatchShell(project=str(job.project), environment=job.environment)],
        )
        if dry_run:
            experiment.dryrun()
            return 0
        if not checked:
            check(job, executor)
        on_slurm = isinstance(executor, run.SlurmExecutor)
        if on_slurm and executor.tunnel.run("sacct --noheader --jobs=1", warn=True).return_code:
            raise UserError(
                "sacct does not work here, and without it NeMo-Run never learns that a job has ended: use "
                "megatron-sspo launch --on slurm"
            )
        experiment.run(tail_logs=True)
    state = _final_state(experiment)
    print(f"experiment {experiment._id}: {state}", flush=True)
    return 0 if state == "SUCCEEDED" else 1


def check(job: SlurmJob, executor: run.Executor) -> None:
    """Runs the checks of `megatron-sspo launch` with the trainer's interpreter. Raises UserError with their message."""
    on_slurm = isinstance(executor, run.SlurmExecutor)
    place = ["--on", "slurm", f"--sbatch={shlex.join(job.options)}", f"--script={job.script}"] if on_slurm else []
    command = [_python(job), "-m", "megatron_sspo", "launch", *job.arguments, "--check", *place]
    environment = {**os.environ, **job.environment, "PYTHONPATH": str(job.project)}
    done = subprocess.run(
        command, cwd=job.project, env=environment, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(lines[-1].removeprefix("megatron-sspo: "))


def _final_state(experiment: run.Experiment) -> str:
    """Returns the final state of the task. Right after the end, Slurm's accounting may not have it yet."""
    deadline = time.monotonic() + _STATE_SECONDS
    while True:
        found = [entry["status"] for entry in (experiment.status(return_dict=True) or {}).values()]
        state = str(getattr(found[0], "name", found[0])) if found else "UNKNOWN"
        if state in _ENDED or time.monotonic() > deadline:
            return state
        time.sleep(2)


def main() -> int:
    """Submits the experiment; called by `megatron-sspo launch --on nemo-run` after its checks."""
    parser = argparse.ArgumentParser(prog="megatron_sspo.launch.nemo_run", description=main.__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--sbatch", default="")
    parser.add_argument("--script", default=SCRIPT)
    parser.add_argument("--executor", choices=("slurm", "local"), default="slurm")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    try:
        job = SlurmJob(
            recipe=options.recipe,
            assignments=options.set,
            options=split_options(options.sbatch),
            variables=variables_from_environment(),
            script=options.script,
        )
        executor = slurm_executor(job) if options.executor == "slurm" else run.LocalExecutor()
        return launch(job, executor, dry_run=options.dry_run, checked=True)
    except UserError as error:
        print(f"megatron-sspo: {error}", file=sys.stderr, flush=True)
        return 2
