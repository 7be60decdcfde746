"""Starts a module of this package in the interpreter that has NeMo-Run, without the trainer's packages."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.launch import slurm
from megatron_sspo.processes.parent import exit_with_parent


def run_module(module: str, arguments: Sequence[str], job: slurm.SlurmJob, *, executor: str, dry_run: bool) -> int:
    """Runs `main` of a module under NeMo-Run's interpreter, and returns its exit code.

    Args:
        module: the full name of the module; `-m` does not start it, because experiments store classes by their module.
        arguments: the arguments before the options that all modules share.
        job: the job with the project, the options of sbatch and the environment.

    Raises:
        UserError: there is no such interpreter.
    """
    python = os.environ.get("NEMO_RUN_PYTHON") or str(job.project / ".venv-nemo-run" / "bin" / "python")
    if not Path(python).exists():
        raise UserError(
            f"there is no NeMo-Run at {python}: make install-nemo-run, or set NEMO_RUN_PYTHON to an interpreter "
            "that has it"
        )
    command = [python, "-c", f"import sys; from {module} import main; sys.exit(main())", *arguments]
    command += [f"--sbatch={shlex.join(job.options)}", f"--executor={executor}", *(["--dry-run"] if dry_run else [])]
    environment = {**os.environ, "PYTHONPATH": str(job.project), **job.environment}
    if executor == "local" or "CONTAINER" not in job.variables:
        environment.setdefault("PYTHON", sys.executable)
    environment.setdefault("COLUMNS", "200")  # the width to which NeMo-Run wraps what it prints, scripts included
    end_with_this_process = partial(exit_with_parent, os.getpid())
    return subprocess.run(
        command, cwd=job.project, env=environment, preexec_fn=end_with_this_process, check=False
    ).returncode
