"""The agent `verifiers` and its process, with a stand-in for the package that ends the process."""

import asyncio
import contextlib
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from sspo_agents import agents as agents_module
from sspo_agents.agents import Agents
from sspo_agents.errors import AgentError
from sspo_agents.verifiers import Verifiers, chats

PROMPT = SimpleNamespace(id="0", metadata={"task": 0})
LOADERS = """
import os, signal, types

def resolve_env_config(environment):
    return types.SimpleNamespace(taskset=None)

def load_taskset(config):
    while True:
        yield os._exit(3)
"""


_SIGNALS = "os.kill(os.getpid(), signal.SIGTERM) or os.kill(os.getpid(), signal.SIGUSR1)"


@pytest.mark.parametrize(
    ("done", "message"),
    [
        ("os._exit(3)", "exit code 3"),  # a further episode begins another process
        (_SIGNALS, r"the environment failed: .*load_environment"),  # which Slurm sends to all; the next thing it does
    ],
)
def test_episodes_of_a_process_that_ends_itself_or_gets_signals(tmp_path: Path, done: str, message: str) -> None:
    folder = tmp_path / "verifiers" / "v1" / "utils"
    folder.mkdir(parents=True)
    (folder / "loaders.py").write_text(LOADERS.replace("os._exit(3)", done), encoding="utf-8")

    async def run_two() -> None:
        vf = Verifiers({}, folder=str(tmp_path))
        for _ in range(2):
            with pytest.raises(RuntimeError, match=message):
                await asyncio.wait_for(vf.run("http://127.0.0.1", PROMPT), 60)
        await vf.close()

    asyncio.run(run_two())


def test_an_interpreter_that_writes_before_its_program() -> None:
    with pytest.raises(AgentError, match=r"cannot be opened in /bin/echo \(it writes b'-P .*name another interpreter"):
        chats({}, python="/bin/echo")


def interpreter(path: Path, script: str) -> str:
    """Writes a stand-in for the interpreter, and returns its path."""
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_an_episode_that_ends_while_the_process_starts_leaves_no_process(tmp_path: Path) -> None:

    async def run_one() -> None:
        vf = Verifiers({}, interpreter(tmp_path / "slow", f"echo $$ > {tmp_path}/pid; exec sleep 600"))
        episode = asyncio.create_task(vf.run("http://127.0.0.1", PROMPT))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        wait_until_it_ends(int((tmp_path / "pid").read_text()))
        await vf.close()

    asyncio.run(run_one())


def test_a_process_that_does_not_end_is_killed_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_module, "_CLOSE_SECONDS", 0.1)
    vf = Verifiers({}, interpreter(tmp_path / "deaf", f"echo $$ > {tmp_path}/pid; echo '{{}}'; exec sleep 600"))
    agents = Agents(vf)
    agents.begin("http://127.0.0.1", PROMPT)
    while vf._reading is None:
        time.sleep(0.01)
    agents.close()
    wait_until_it_ends(int((tmp_path / "pid").read_text()))


def wait_until_it_ends(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
