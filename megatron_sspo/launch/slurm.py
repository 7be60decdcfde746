"""Submits `slurm/train.sbatch`, or another script of that folder, to this machine's Slurm cluster."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatron_sspo.errors import UserError

# The environment variables that the scripts read; slurm/README.md explains them.
VARIABLES = (
    *("RUN", "SERVER_NODES", "SERVERS_PER_NODE", "RANKS_PER_NODE", "SERVERS", "PYTHON", "SERVER_PYTHON"),
    *("CONTAINER", "SERVER_CONTAINER", "MOUNTS", "INTERFACE", "PROJECT", "RESTART"),
)
_FOLDERS = ("RUN", "SERVERS")
_IMAGES = ("CONTAINER", "SERVER_CONTAINER")
SCRIPT = "slurm/train.sbatch"
SWEEP_SCRIPT = "slurm/sweep.sbatch"
_SHARED = Path("slurm/job.sh")  # every script sources it
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """A training job of `slurm/`, for sbatch or for NeMo-Run.

    Attributes:
        recipe: the recipe's name as for `megatron-sspo train`.
        assignments: overrides as for `--set`.
        options: options of sbatch, which override those in the script.
        variables: values of `VARIABLES`; the script has defaults for missing and empty ones.
        script: the path of the script, relative to the project.
    """

    recipe: str
    assignments: Sequence[str] = ()
    options: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    script: str = SCRIPT

    def __post_init__(self) -> None:
        object.__setattr__(self, "variables", {name: value for name, value in self.variables.items() if value})
        if not (self.project / self.script).is_file():
            raise UserError(
                f"{self.project} has no {self.script}: start from a project of `megatron-sspo new` or a checkout, "
                "or set PROJECT to one"
            )
        unknown = sorted(self.variables.keys() - set(VARIABLES))
        if unknown:
            raise UserError(f"unknown variable {unknown[0]} for slurm/: choose one of {', '.join(VARIABLES)}")

    @property
    def project(self) -> Path:
        """The folder with `slurm/`: see `project_folder`."""
        return project_folder(self.variables)

    @property
    def run_folder(self) -> Path:
        """The run's folder: RUN, or a new one, in whose name the script has the number that Slurm gives the job."""
        new = self.project / "runs" / f"{self.all_options().get('job-name', 'job')}-JOB_ID"
        return Path(self.variables["RUN"]).absolute() if "RUN" in self.variables else new

    @property
    def arguments(self) -> list[str]:
        """The arguments of the script."""
        return [self.recipe, *(part for assignment in self.assignments for part in ("--set", assignment))]

    @property
    def environment(self) -> dict[str, str]:
        """The variables, the project, and an interpreter if the project has none: a job cannot find these itself.

        Folders, and images that are files, are absolute: the job's working folder is the project, not the one where
        RUN was set.
        """
        paths = [name for name in (*_FOLDERS, *_IMAGES) if name in self.variables]
        paths = [name for name in paths if name in _FOLDERS or Path(self.variables[name]).exists()]
        folders = {name: str(Path(self.variables[name]).absolute()) for name in paths}
        found = {**self.variables, **folders, "PROJECT": str(self.project)}
        if not (self.project / ".venv" / "bin" / "python").exists() and "CONTAINER" not in found:
            found.setdefault("PYTHON", sys.executable)
        return found

    @property
    def command(self) -> list[str]:
        """The sbatch command, to be run in the project."""
        return ["sbatch", *self.options, self.script, *self.arguments]

    def script_assignments(self) -> list[str]:
        """Returns the overrides (`--set`) in the script itself."""
        return re.findall(r'^ +--set "([^"$]+)"', self._script_text(), re.MULTILINE)

    def all_options(self) -> dict[str, str]:
        """Returns the sbatch options in effect, name -> value: later ones, and the job's over the script's, win.

        The script's are in its lines `#SBATCH`, which end for sbatch at its first command.
        """
        head = re.match(r"(?:[ \t]*(?:#.*)?\n)*", self._script_text())
        lines = re.findall(r"^#SBATCH[ \t]+(.+)$", head[0] if head else "", re.MULTILINE)
        words = [word for line in lines for word in split_options(line, self.script, comments=True)]
        pairs = (word.removeprefix("--").partition("=") for word in [*words, *self.options])
        return {name: value for name, _, value in pairs}

    def variable(self, name: str) -> str:
        """Returns a variable's value in the job: the given one or the script's default; "" if a node determines it."""
        if name in self.variables:
            return self.variables[name]
        default = re.search(rf"^{name}=\${{{name}:-([^}}$]*)}}", self._script_text(), re.MULTILINE)
        return default[1] if default else ""

    def describe(self) -> str:
        """Returns exactly what would be submitted: working folder, environment, command line and script."""
        lines = [f"cd {shlex.quote(str(self.project))}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return "\n".join([*lines, shlex.join(self.command), "", f"# {self.script}", self._script_text().rstrip()])

    def submit(self) -> int:
        """Runs sbatch, which prints the job's number; returns its exit code. Raises UserError if there is no sbatch."""
        if shutil.which("sbatch") is None:
            raise UserError("there is no sbatch on this machine: start from a login node of the cluster")
        return subprocess.run(self.command, cwd=self.project, env={**os.environ, **self.environment}).returncode

    def _script_text(self) -> str:
        return (self.project / self.script).read_text(encoding="utf-8")


def variables_from_environment() -> dict[str, str]:
    """Returns the values of those `VARIABLES` that the environment has; an empty one counts as missing."""
    return {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}


def project_folder(variables: Mapping[str, str]) -> Path:
    """Returns the folder of `slurm/`: PROJECT, the working folder if it has one, or the checkout of this package.

    A package that pip has installed has no checkout; then it is the working folder in any case.
    """
    if variables.get("PROJECT"):
        return Path(variables["PROJECT"]).absolute()
    checkout = _PACKAGE.parent
    return Path.cwd() if (Path.cwd() / _SHARED).exists() or not (checkout / _SHARED).exists() else checkout


def split_options(text: str, what: str = "--sbatch", *, comments: bool = False) -> list[str]:
    """Splits a string such as `--nodes=6 --time=08:00:00`, maybe with comments after a #, into options as a shell does.

    Raises UserError, with `what` as the place, for a word that is no long option, or for a quote that is not closed.
    """
    try:
        options = shlex.split(text, comments=comments)
    except ValueError as error:
        raise UserError(f"{what} is {text!r}, which a shell cannot read: {error}") from error
    for word in options:
        if not re.fullmatch(r"--[a-z][a-z0-9-]*(=.*)?", word, re.DOTALL):
            raise UserError(f"{what} has {word!r}, which is not an option of the form --name=value, such as --nodes=6")
    return options


def _gpus_per_node(given: Mapping[str, str]) -> int | None:
    """Returns the number of GPUs that --gres or --gpus-per-node gives each of the nodes; None if neither does."""
    gres = [part for part in given.get("gres", "").split(",") if part.partition(":")[0] == "gpu"]
    return _sum(gres or given.get("gpus-per-node", "").split(","))


def _sum(parts: Sequence[str]) -> int | None:
    """Returns the sum of parts such as `8`, `h100:8` or `gpu:h100:8`; None if one has no number."""
    ends = [part.rpartition(":")[2] for part in parts]
    return sum(map(int, ends)) if all(end.isascii() and end.isdecimal() for end in ends) else None


def check_size(job: SlurmJob, sizes: Collection[int]) -> None:
    """Checks that the trainer nodes hold as many ranks as a layout, where sbatch's options say how many.

    A range of nodes, `--nodes=2-3`, needs a layout for each number in it. `sizes` are the numbers of processes of the
    run's layouts. Raises UserError with both numbers, and how to change them, if they differ.
    """
    given = job.all_options()
    nodes = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", given.get("nodes", ""))
    server_nodes = _sum([job.variable("SERVER_NODES")])
    ranks = _sum([job.variable("RANKS_PER_NODE")]) or _gpus_per_node(given)
    if nodes is None or server_nodes is None or ranks is None:
        return
    for number in range(int(nodes[1]), int(nodes[2] or nodes[1]) + 1):
        if (number - server_nodes) * ranks not in sizes:
            needed = " or ".join(map(str, sorted(sizes)))
            raise UserError(
                f"the job {'may get' if nodes[2] else 'has'} {number} nodes, {server_nodes} of them for servers, with "
                f"{ranks} ranks on each of the others, but the layout needs {needed} ranks: change "
                "--sbatch=--nodes=..., SERVER_NODES, RANKS_PER_NODE, parallel.* or layouts"
            )
