"""An agent that runs environments of the package `verifiers`, in an interpreter of their own."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sspo_agents.errors import AgentError

TASK = "task"  # the field of a row's metadata that has the number of its task
_WORKER = Path(__file__).with_name("verifiers_worker.py")
_LONGEST_LINE = 1 << 26
_CLOSE_SECONDS = 30.0  # on a busy machine Python takes seconds to end


class Verifiers:
    """An agent that runs each prompt as an episode of an environment, in a worker process.

    Args:
        environment: the configuration of the environment, as the table `[env]` of verifiers: its taskset by name, its
            agents with their harnesses and runtimes, and their options.
        python: an interpreter that has verifiers; "" is this one.
        folder: a folder whose modules may be named as tasksets and harnesses; "" is the working folder.
    """

    def __init__(self, environment: Mapping[str, Any], python: str = "", folder: str = "") -> None:
        self._environment, self._python, self._folder = environment, python, folder
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def run(self, base_url: str, prompt: Any) -> dict[str, float]:
        """Runs an episode of the task that the prompt's row names, and returns the rewards of its rubric by name.

        Raises:
            AgentError: the row names no task, or the interpreter has no verifiers or no such environment.
            RuntimeError: the environment reports that the episode failed.
        """
        if not isinstance(prompt.metadata.get(TASK), int):
            raise AgentError(
                f"the prompt {prompt.id} has no number of a task in its field {TASK!r}: name the source "
                "verifiers in prompts.source"
            )
        return await self._ask(task=prompt.metadata[TASK], base_url=base_url)

    async def chats(self, size: int | None) -> list[list[dict[str, str]]]:
        """Returns the chats that the first `size` tasks begin with; None is all. See `run` for errors."""
        return await self._ask(rows=size)

    async def _ask(self, **command: Any) -> Any:
        """Sends a command to the process, starting it if there is none, and returns the result."""
        async with self._starting:
            if self._reading is None or self._reading.done():  # there is no process, or it has ended
                self._process = await self._start()
        process = self._process
        assert process is not None
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            _send(process, {"number": number, **command})
            found = await answer
        except asyncio.CancelledError:
            _send(process, {"number": number, "cancel": True})
            raise
        finally:
            del self._waiting[number]
        if "error" in found:
            raise RuntimeError(f"the environment failed: {found['error']}")
        return found["result"]

    async def close(self) -> None:
        """Ends the process."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_SECONDS)
        except TimeoutError:
            pass
        finally:  # also if the run does not wait as long
            _kill(self._process)
            await self._process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(self._python),
                env=_variables(self._folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                limit=_LONGEST_LINE,
                start_new_session=True,  # Ctrl-C goes to the run alone, which ends this process
            )
        except OSError as error:
            raise AgentError(
                f"{self._python} cannot be started ({error.strerror}): name an interpreter with the option python"
            ) from error
        assert process.stdin is not None and process.stdout is not None
        try:
            _send(process, self._environment)
            _check_first(await process.stdout.readline(), self._python)
        except BaseException:  # also the end of an episode that had no time left
            _kill(process)
            await process.wait()
            raise
        self._reading = asyncio.create_task(self._read(process))
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            found = json.loads(line)
            if (answer := self._waiting.get(found["number"])) is not None and not answer.done():
                answer.set_result(found)
        error = f"the process of verifiers ended with exit code {await process.wait()}; what it wrote is on stderr"
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result({"error": error})


def chats(
    environment: Mapping[str, Any], python: str = "", folder: str = "", size: int | None = None
) -> list[list[dict[str, str]]]:
    """Returns the chats that the tasks of an environment begin with, in the order of their numbers.

    Args:
        environment, python, folder: see `Verifiers`.
        size: the number of tasks, from the first one; None is all.

    Raises:
        AgentError: there are no verifiers or no such environment, or its tasks have no end and `size` is None.
    """

    async def ask() -> list[list[dict[str, str]]]:
        worker = Verifiers(environment, python, folder)
        try:
            return await worker.chats(size)
        finally:
            await worker.close()

    try:
        return asyncio.run(ask())
    except RuntimeError as error:
        raise AgentError(f"the tasks of the environment cannot be read: {_one_line(str(error))}") from error


def _command(python: str) -> list[str]:
    # -P: `verifiers.py` beside the worker must not shadow the package
    return [python or sys.executable, "-P", str(_WORKER)]


def _variables(folder: str) -> dict[str, str]:
    """Returns the environment variables of the worker, whose own processes find the folder too."""
    path = [str(Path(folder).resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def _send(process: asyncio.subprocess.Process, content: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    if not process.stdin.is_closing():
        process.stdin.write(f"{json.dumps(content)}\n".encode())


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the environment has started


def _check_first(line: bytes, python: str) -> None:
    """Raises AgentError if the worker could not open the environment, or the interpreter wrote something else first."""
    try:
        error = json.loads(line or b'{"error": "its process ended; what it wrote is on stderr"}').get("error")
    except (ValueError, AttributeError):
        error = f"it writes {line[:80]!r} before it runs a program"
    if error is not None:
        raise AgentError(
            f"the environment of verifiers cannot be opened in {python or sys.executable} ({_one_line(error)}): "
            "install verifiers>=0.4 and the environment there, or name another interpreter with the option python"
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())
