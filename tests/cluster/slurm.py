"""Jobs on the cluster of up.sh, and the processes on its nodes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CLUSTER = Path(os.environ.get("MEGATRON_SSPO_CLUSTER", "/tmp/megatron_sspo_cluster"))
NEMO_RUN_PYTHON = Path(os.environ.get("NEMO_RUN_PYTHON", Path(sys.prefix).parent / ".venv-nemo-run" / "bin" / "python"))
SERVER_PYTHON = Path(sys.prefix).parent / ".venv-sglang" / "bin" / "python"
NODES = ("n1", "n2", "n3", "n4")
_DAEMONS = ("slurmd", "slurmstepd")
_ALIVE = ("PENDING", "RUNNING", "SIGNALING", "COMPLETING", "REQUEUED")
_LONG = 300.0  # seconds; a timeout for waits that take about one second on an idle machine


def call(*command: str | Path) -> str:
    """Runs a command of Slurm or of this machine, and returns its output."""
    environment = {**os.environ, "SLURM_CONF": str(CLUSTER / "etc" / "slurm.conf")}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def environment(**variables: object) -> dict[str, str]:
    """Returns what a command that submits jobs has in its environment."""
    given = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "SLURM_CONF": CLUSTER / "etc" / "slurm.conf",
        "HF_HUB_OFFLINE": 1,
        "PYTHON": sys.executable,
        "RANKS_PER_NODE": 1,
        **variables,
    }
    return {name: str(value) for name, value in given.items()}


def processes(node: str) -> dict[int, str]:
    """Returns pid -> command line of the processes in the node's namespace, except Slurm's daemons."""
    found = {}
    for pid in map(int, call("ip", "netns", "pids", f"sspo-cluster-{node}").split()):
        try:
            if (Path("/proc") / str(pid) / "comm").read_text().strip() not in _DAEMONS:
                found[pid] = (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return {pid: line for pid, line in found.items() if line}


@dataclass
class Job:
    """A job that was submitted from its own folder; its run is in `folder`/run."""

    id: str
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def state(self) -> str:
        return self.shown("JobState")

    def shown(self, name: str) -> str:
        """Returns a field of `scontrol show job`."""
        fields = call("scontrol", "show", "job", "--oneliner", self.id).split()
        return next(field.partition("=")[2] for field in fields if field.startswith(f"{name}="))

    def log(self) -> str:
        found = sorted(self.folder.glob(f"*-{self.id}.out"))
        return found[0].read_text() if found else ""

    def last_line(self) -> str:
        return self.log().splitlines()[-1]

    def logs(self) -> str:
        """Returns all logs of the job, for the message of a failed test."""
        roles = [f"--- {path}\n{path.read_text()}" for path in sorted(self.run.glob("slurm/*/*.log"))]
        return "\n".join([self.log(), *roles])

    def rows(self) -> list[dict[str, float]]:
        """Returns the rows of metrics.jsonl without an incomplete last one."""
        path = self.run / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait(self, happened: Callable[[], bool], seconds: float = _LONG) -> None:
        """Waits until `happened` returns True; fails if the job ends before."""
        deadline = time.monotonic() + seconds
        while True:
            is_alive = self.state in _ALIVE  # before the question: what is waited for may be the job's end
            if happened():
                return
            assert is_alive, self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def end(self, seconds: float = _LONG) -> str:
        """Waits until the job has ended and none of its processes runs on any node; returns its state."""
        deadline = time.monotonic() + seconds
        while (state := self.state) in _ALIVE:
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)
        while left := {node: found for node in NODES if (found := processes(node))}:
            assert time.monotonic() < deadline, (left, self.logs())
            time.sleep(0.2)
        return state


@dataclass
class Workplace:
    """A test's folder with a recipe and a model's configuration, and the jobs that were submitted from it."""

    folder: Path
    jobs: list[Job] = field(default_factory=list)

    @property
    def recipe(self) -> str:
        return str(self.folder / "recipe.py")

    @property
    def hold(self) -> Path:
        """The file that makes rewards wait, and so the run, as long as it exists."""
        return self.folder / "hold"

    def submit(
        self,
        script: str | Path,
        *arguments: str,
        options: tuple[str, ...] = (),
        gpus: str = "--gpus-per-node=2",
        **variables: object,
    ) -> Job:
        """Runs `sbatch GPUS OPTIONS slurm/SCRIPT ARGUMENTS` with these variables; SCRIPT may be an absolute path."""
        given = {"PROJECT": ROOT, "SERVER_PYTHON": SERVER_PYTHON, "RUN": self.folder / "run", **variables}
        command = ["sbatch", "--parsable", *gpus.split(), *options, str(ROOT / "slurm" / script), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=environment(**given), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        self.jobs.append(Job(done.stdout.strip(), self.folder))
        return self.jobs[-1]

    def train(self, *arguments: str, options: tuple[str, ...] = (), **variables: object) -> Job:
        """Submits a job of two trainers, which generate themselves or, with SERVER_NODES, use another node's server."""
        servers = int(str(variables.get("SERVER_NODES", 0)))
        sizes = {"SERVER_NODES": servers, "SERVERS_PER_NODE": min(servers, 1)}
        recipe = self.recipe if servers or "SERVERS" in variables else f"{self.recipe}:embedded"
        options = (f"--nodes={2 + servers}", "--time=30", *options)
        return self.submit("train.sbatch", recipe, *arguments, options=options, **{**sizes, **variables})
