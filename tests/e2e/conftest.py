"""Fixtures for whole runs of a very small model through the command line, in their own processes."""

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from filelock import FileLock

from tests.forking import Python

ROOT = Path(__file__).parents[2]
PLUGINS = Path(__file__).with_name("plugins.py")

_RECIPE = '''
from dataclasses import replace
from pathlib import Path

from megatron_sspo.types import Sampling
from megatron_sspo.objective import Penalties
from megatron_sspo.run import LoRA, Evaluation, HeldOut, Model, Optimizer, Parallel, Prompts, Rollouts, Run, WarmStart

HERE = Path(__file__).parent


def recipe() -> Run:
    """μ = 2 and a checkpoint after every update, so that half of the checkpoints are within a cycle."""
    return Run(
        name="run",
        output=str(HERE),
        model=Model(path=str(HERE / "config"), init="random", dtype="float32"),
        warm_start=WarmStart(
            prompts=additions(64), updates=3, batch_size=8, optimizer=Optimizer(lr=1e-3, schedule="cosine")
        ),
        prompts=additions(10),  # fewer than a run takes: the stream begins new epochs
        rollouts=Rollouts(prompts_per_update=3, group_size=4, sampling=Sampling(max_tokens=12)),
        reward="PLUGINS:vowels",
        num_updates=6,
        optimizer=Optimizer(lr=1e-3, schedule="linear"),
        tokens_per_microbatch=64,
        evaluation=Evaluation(sets=held_out(), every=2, samples=2),
        checkpoint_every=1,
        checkpoints_kept=4,
    )


def experts() -> Run:
    return replace(recipe(), parallel=Parallel(data=2, expert=2))


def by_size() -> Run:
    return replace(recipe(), layouts={2: Parallel(data=2, expert=2)})


def bare() -> Run:
    """Nothing but rollouts and updates."""
    return replace(recipe(), warm_start=None, evaluation=None, checkpoint_every=0)


def adapted() -> Run:
    """Adapters, and their base as the reference policy."""
    adapters = LoRA(rank=4, alpha=8.0, targets=("attention", "experts"))
    return replace(bare(), num_updates=3, checkpoint_every=1, lora=adapters, penalties=Penalties(kl_coef=0.01))


def held_out() -> dict[str, HeldOut]:
    return {
        "sums": HeldOut(prompts=additions(16, "held_out")),
        "short": HeldOut(
            prompts=additions(4, "held_out"), title="Short", reward="math", reward_options={"exact": True}, max_tokens=4
        ),
    }


def additions(size: int, split: str = "train") -> Prompts:
    return Prompts(source="arithmetic", options={"size": size, "split": split}, template="{question}", max_tokens=8)
'''


@dataclass
class Workshop:
    """A folder with a recipe, and methods that run and kill the command line there."""

    folder: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    sessions: set[int] = field(default_factory=set)  # of the commands that were started

    @property
    def recipe(self) -> str:
        return str(self.folder / "recipe.py")

    def start(self, *arguments: str, **variables: str) -> Python:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TEST_TOKEN": self.token, **variables}
        process = Python("-m", "megatron_sspo", *arguments, folder=ROOT, environment=environment)
        self.sessions.add(process.pid)
        return process

    def run(self, *arguments: str, timeout: float = 240) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def wait_for(self, happened: Callable[[], bool], process: Python) -> None:
        """Waits until `happened` returns True; fails if the process ends before."""
        deadline = time.monotonic() + 240
        while not happened():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill_when(self, happened: Callable[[], bool], *arguments: str) -> None:
        """Starts the command line and sends SIGKILL to that process only, once `happened` returns True."""
        process = self.start(*arguments)
        self.wait_for(happened, process)
        process.kill()
        process.wait()
        self.assert_nobody_left()

    def assert_nobody_left(self, seconds: float = 10) -> None:
        """Checks that no process that a command started, directly or indirectly, outlives it."""
        deadline = time.monotonic() + seconds
        while left := self._processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def _processes(self) -> list[str]:
        """Returns the command lines of processes in a command's session, and of programs that one has started."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
                if session in self.sessions or self.token.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return [line for line in found if line]


def _make(folder: Path) -> Workshop:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.py").write_text(_RECIPE.replace("PLUGINS", str(PLUGINS)))
    (folder / "config").mkdir()
    for file in (ROOT / "examples" / "tiny_moe").iterdir():
        (folder / "config" / file.name).write_text(file.read_text())
    config = json.loads((folder / "config" / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config |= {"head_dim": 16, "intermediate_size": 32, "moe_intermediate_size": 16}
    (folder / "config" / "config.json").write_text(json.dumps(config))
    return Workshop(folder)


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """A new workshop for each test; its processes are ended afterwards."""
    made = _make(tmp_path)
    yield made
    made.assert_nobody_left()


@pytest.fixture(scope="session", params=["recipe", "experts"])
def whole_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workshop, str]:
    """An uninterrupted run to compare others with, on one process, and on two with half of the experts each.

    The workers of pytest-xdist share it, so no test may change it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "whole_run" / request.param
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if (folder / "run" / "model").exists():
            return Workshop(folder), request.param
        made = _make(folder)
        done = made.run("train", f"{made.recipe}:{request.param}")
        assert done.returncode == 0, done.stderr
        made.assert_nobody_left()
        return made, request.param


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A run of two updates on one process, with its model and one checkpoint."""
    made = _make(tmp_path_factory.mktemp("trained"))
    done = made.run("train", f"{made.recipe}:bare", "--set", "num_updates=2")
    assert done.returncode == 0, done.stderr
    return made
