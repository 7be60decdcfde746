"""Writes a new project: a recipe, its reward, data, model and Slurm scripts, to be edited."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from megatron_sspo.errors import UserError, os_errors_as_user_errors

TEMPLATE = Path(__file__).parent / "template"
_PAGE = re.compile(r"\bdocs/\w+\.md\b")  # a page that a project does not have


def write_project(folder: Path) -> None:
    """Writes the files of a new project into a folder, which appears when it is complete.

    Links of the template, which name files elsewhere in a checkout, become files. The scripts of Slurm are among them,
    so that they can be edited, and because a job sources them where the package may exist in a container alone.

    Raises:
        UserError: the folder exists, or it cannot be written.
    """
    if os.path.lexists(folder):
        raise UserError(f"{folder} exists already: name a new folder, or remove it")
    folder = folder.absolute()
    temporary = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    with os_errors_as_user_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            # copyfile: the files of an installed package may be read-only
            shutil.copytree(
                TEMPLATE,
                temporary,
                ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"),
                copy_function=shutil.copyfile,
            )
            for path in (*temporary.glob("paper/*.py"), *temporary.glob("slurm/*.sbatch")):  # recipes are in examples/
                text = path.read_text(encoding="utf-8").replace(" examples/", " paper/")
                path.write_text(_PAGE.sub(r"\g<0> of megatron_sspo", text), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, "rows.py"], cwd=temporary, stderr=subprocess.PIPE, encoding="utf-8", check=False
            )
            if done.returncode:
                *_, reason = done.stderr.splitlines() or [f"exit code {done.returncode}"]
                raise UserError(f"cannot write the rows of {folder}: {reason}; make room, or choose another disk")
            temporary.rename(folder)
        except shutil.Error as error:  # of all files that could not be copied
            (_, _, reason), *_ = error.args[0]
            raise UserError(f"cannot write into {folder}: {reason}; make room, or choose another disk") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
