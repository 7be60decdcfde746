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

from megatron_sspo.config.naming import one_line
from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.processes.parent import describe_exit
from megatron_sspo.types import Prompt

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
        self._environment, self._python, self._folder = _checked(environment, folder), python, folder
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def run(self, base_url: str, prompt: Prompt) -> dict[str, float]:
        """Runs an episode of the task that the prompt's row names, and returns the rewards of its rubric by name.

        Raises:
            UserError: the row names no task, or the interpreter has no verifiers or no such environment.
            RuntimeError: the environment reports that the episode failed.
        """
        if not isinstance(prompt.metadata.get(TASK), int):
            raise UserError(
                f"the prompt {prompt.id} has no number of a task in its field {TASK!r}: name the source "
                "verifiers in prompts.source"
            )
        async with self._starting:
            if self._reading is None or self._reading.done():  # there is no process, or it has ended
                self._process = await self._start()
        process = self._process
        assert process is not None
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            _send(process, {"number": number, "task": prompt.metadata[TASK], "base_url": base_url})
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
            raise _no_interpreter(self._python, error) from error
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
        error = f"the process of verifiers {describe_exit(await process.wait())}; what it wrote is on stderr"
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result({"error": error})


agent = Verifiers


def chats(
    environment: Mapping[str, Any], python: str = "", folder: str = "", size: int | None = None
) -> list[list[dict[str, str]]]:
    """Returns the chats that the tasks of an environment begin with, in the order of their numbers.

    Args:
        environment, python, folder: see `Verifiers`.
        size: the number of tasks, from the first one; None is all.

    Raises:
        UserError: the interpreter has no verifiers or no such environment, or its tasks have no end and `size` is None.
    """
    if size is not None and size < 1:
        raise UserError(f"the option size of the source verifiers is {size}: it must be 1 or more, or None for all")
    _checked(environment, folder)
    sent = "".join(f"{json.dumps(line)}\n" for line in (environment, {"number": 0, "rows": size}))
    try:
        done = subprocess.run(
            _command(python), env=_variables(folder), input=sent.encode(), stdout=subprocess.PIPE, check=False
        )
    except OSError as error:
        raise _no_interpreter(python, error) from error
    first, _, second = done.stdout.partition(b"\n")
    _check_first(first, python)
    found = json.loads(second or b'{"error": "its process ended; what it wrote is on stderr"}')
    if "error" in found:
        raise UserError(f"the tasks of the environment cannot be read: {one_line(found['error'])}")
    return found["result"]


def _checked(environment: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    """Returns an environment that can be sent to the worker.

    Raises:
        UserError: it has a value that JSON does not have, or there is no such folder.
    """
    try:
        json.dumps(environment)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the option environment of verifiers has a value that JSON does not have ({one_line(str(error))}): write "
            "texts, numbers, lists and dicts"
        ) from error
    if not Path(folder).is_dir():
        raise UserError(f"there is no folder {folder}, the option folder of verifiers: it is relative to {Path.cwd()}")
    return environment


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
    """Raises UserError if the worker could not open the environment, or the interpreter wrote something else first."""
    try:
        found = json.loads(line or b'{"error": "its process ended; what it wrote is on stderr"}')
        error = found.get("error")
    except (ValueError, AttributeError):
        written = short_repr(line.decode(errors="replace").strip())
        raise UserError(
            f"{python or sys.executable} writes {written} to stdout before it runs a program: name an "
            "interpreter of Python itself with the option python, and no script around it"
        ) from None
    if error is not None:
        raise UserError(
            f"the environment of verifiers cannot be opened in {python or sys.executable} ({one_line(error)}): install "
            "verifiers>=0.4 and the environment there, or name another interpreter with the option python"
        )


def _no_interpreter(python: str, error: OSError) -> UserError:
    return UserError(f"{python} cannot be started ({error.strerror}): name an interpreter with the option python")
