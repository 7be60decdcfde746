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
    real = Path(os.path.realpath(folder))  # of missing/.. it is the working folder, which exists
    if os.path.lexists(folder) or real.exists():
        raise UserError(f"{folder} exists already: name a new folder, or remove it")
    temporary = real.with_name(f".new-{os.getpid()}")
    with os_errors_as_user_errors(folder):
        real.parent.mkdir(parents=True, exist_ok=True)
        try:
            _copy_template(temporary)
            for path in (*temporary.glob("paper/*.py"), *temporary.glob("slurm/*.sbatch")):  # recipes are in examples/
                text = path.read_text(encoding="utf-8").replace(" examples/", " paper/")
                path.write_text(_PAGE.sub(r"\g<0> of megatron_sspo", text), encoding="utf-8")
            subprocess.run([sys.executable, "rows.py"], cwd=temporary, check=True)
            temporary.rename(real)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _copy_template(target: Path) -> None:
    """Copies the template without the modes of its files: those of an installed package may be read-only."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.jsonl")
    shutil.copytree(TEMPLATE, target, ignore=unwanted, copy_function=shutil.copyfile)
    for path in (target, *target.rglob("*/")):
        path.chmod(0o755)
