"""Runs environments of the package `verifiers`, in the interpreter that has it; `verifiers.py` starts this program.

It reads a line of JSON for each command, and writes one for each answer. The first line has the environment. This file
imports nothing of its own package, because that interpreter need not have it.
"""

import asyncio
import functools
import json
import os
import signal
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

_EPISODES_SERVED = 256  # by an environment's servers, which keep a client for each episode's address until they end
_LONGEST_LINE = 1 << 26


class Served:
    """An environment, by its configuration, whose servers run for a bounded number of episodes."""

    def __init__(self, config: Any) -> None:
        from verifiers.v1.utils.loaders import load_environment

        self.environment = load_environment(config)
        self.num_begun = self._num_in_progress = 0
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._serve())  # servers end in the task that they began in

    async def run(self, task: Any, base_url: str) -> Any:
        """Runs one episode of a task against the policy at `base_url`."""
        from verifiers.v1.clients import EvalClientConfig, ModelContext

        self.num_begun += 1
        self._num_in_progress += 1
        try:
            await asyncio.shield(self._ready)
            client = EvalClientConfig(base_url=base_url, api_key_var="MEGATRON_SSPO_NO_KEY")
            (slot,) = self.environment.slots(task)
            return await self.environment.run_slot(slot, ModelContext(model="policy", client=client))
        finally:
            self._num_in_progress -= 1
            if self.num_begun >= _EPISODES_SERVED and not self._num_in_progress:
                self._ended.set()

    async def _serve(self) -> None:
        try:
            async with self.environment.serving():
                self._ready.set_result(None)
                await self._ended.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def close(self) -> None:
        """Ends the servers."""
        self._ended.set()
        await asyncio.wait([self._task])


class Worker:
    """The episodes in progress of an environment, by its configuration; their answers are written to a file."""

    def __init__(self, config: Any, answers: TextIO) -> None:
        from verifiers.v1.utils.loaders import load_taskset

        self._config, self._answers = config, answers
        self._taskset = load_taskset(config.taskset)
        self._iterator, self._tasks = iter(self._taskset), []
        self._served: Served | None = None
        self._in_progress: dict[int, asyncio.Task[None]] = {}

    async def commands(self, reader: asyncio.StreamReader) -> None:
        """Runs commands until the end of their file."""
        while line := await reader.readline():
            command = json.loads(line)
            number = command["number"]
            if "cancel" in command:
                if number in self._in_progress:
                    self._in_progress[number].cancel()
            elif "rows" in command:
                await self._answer(number, self._rows, command["rows"])
            else:
                work = self._answer(number, self._episode, command["task"], command["base_url"])
                task = self._in_progress[number] = asyncio.create_task(work)
                task.add_done_callback(lambda _, number=number: self._in_progress.pop(number))
        tasks = list(self._in_progress.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._served is not None:
            await self._served.close()

    async def _answer(self, number: int, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        try:
            found = {"result": await work(*arguments)}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        write(self._answers, {"number": number} | found)

    def _task(self, place: int) -> Any:
        while len(self._tasks) <= place:
            self._tasks.append(next(self._iterator))
        return self._tasks[place]

    async def _rows(self, size: int | None) -> list[list[dict[str, str]]]:
        """Returns the chats that the tasks begin with."""
        if size is None and not self._taskset.bounded:
            raise ValueError("the taskset is infinite: give the source a size")
        tasks = self._taskset if size is None else self._taskset.take(size)
        return [_chat(task.data) for task in tasks]

    async def _episode(self, place: int, base_url: str) -> dict[str, float]:
        """Runs an episode and returns the weighted rewards by name."""
        task = self._task(place)
        if self._served is None or self._served.num_begun >= _EPISODES_SERVED:
            self._served = Served(self._config)
        episode = await self._served.run(task, base_url)
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors))
        trained = [trace for trace in episode.traces if trace.agent.trainable]
        for trace in episode.traces:
            if not trace.agent.trainable and trace.agent.config.client.base_url == base_url:
                raise ValueError(f"the agent {trace.agent.name!r} is not trained and asks the policy: give it a client")
        if len(trained) != 1:
            raise ValueError(f"the episode has {len(trained)} agents that are trained, and must have one")
        if not trained[0].rewards:
            raise ValueError("the task has no rewards")
        return {name: reward.value for name, reward in trained[0].rewards.items() if reward is not None}


def _chat(data: Any) -> list[dict[str, str]]:
    from verifiers.v1.types import content_text

    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if data.prompt is None or isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt or data.name or "begin"}]
    return [*system, *({"role": m.role, "content": content_text(m.content)} for m in data.prompt)]


def write(answers: TextIO, content: Any) -> None:
    """Writes one answer."""
    answers.write(json.dumps(content) + "\n")
    answers.flush()


async def main() -> None:
    """Opens the environment, and runs commands until the other process has none left or has ended."""
    # Slurm sends these to all processes of a job, and the trainer still needs the episodes of its update. The
    # environment's own processes would inherit SIG_IGN, and then nothing could end them; a handler they do not inherit.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    # the protocol gets its own descriptors: the environment prints to stdout, and its processes read stdin
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), commands)
    first = json.loads(await reader.readline())
    # an episode makes at least two HTTP clients, each of which would read all certificates again
    ssl.create_default_context = functools.cache(ssl.create_default_context)
    try:
        from verifiers.v1.utils.loaders import resolve_env_config

        worker = Worker(resolve_env_config(first), answers)
    except Exception as error:
        write(answers, {"error": f"{type(error).__name__}: {error}"})
    else:
        write(answers, {})
        await worker.commands(reader)


if __name__ == "__main__":
    asyncio.run(main())
