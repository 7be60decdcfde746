"""The groups of one call of the engine's `start`, generated side by side on SGLang's servers."""

import asyncio
import concurrent.futures
import queue
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.rollout.engine import EpisodeRunner, NeedsWeights
from megatron_sspo.rollout.requests.generation import Requests
from megatron_sspo.rollout.requests.sampler import ServedSampler
from megatron_sspo.rollout.tasks import cancel
from megatron_sspo.types import Prompt, RolloutGroup, Sampling

_POLL_SECONDS = 0.5


class ServedGeneration:
    """The groups of one call of `start`, generated in the engine's thread.

    `submit` starts a coroutine in that thread, `restart_failed` restarts failed servers, and `await_any` waits until a
    server answers.
    """

    def __init__(
        self,
        requests: Requests,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        group_size: int,
        *,
        runner: EpisodeRunner,
        submit: Callable[[Coroutine[Any, Any, Any]], "concurrent.futures.Future[Any]"],
        restart_failed: Callable[[], None],
        await_any: Callable[[], None],
    ) -> None:
        self._requests, self._runner = requests, runner
        self._restart_failed, self._await_any = restart_failed, await_any
        self._num_left = len(prompts)
        self._finished: queue.SimpleQueue[tuple[int, RolloutGroup] | BaseException] = queue.SimpleQueue()
        self._submit, self._work = submit, submit(self._generate_all(prompts, sampling, group_size))

    def wait(self) -> list[tuple[int, RolloutGroup]]:
        """See `Generation.wait`; `NeedsWeights` is raised when another server has come up."""
        found: list[tuple[int, RolloutGroup]] = []
        while self._num_left and not found:
            try:
                self._take(found, self._finished.get(timeout=_POLL_SECONDS))
                while True:
                    self._take(found, self._finished.get_nowait())
            except queue.Empty:
                # The pool detects a server that hangs, and an agent has a time limit; an environment has none.
                if self._requests.are_in_progress or self._runner.has_time_limit:
                    self._submit(_mark_progress())
                self._restart_failed()
                if not found and not self._requests.pool.ready():
                    self._await_any()
                    raise NeedsWeights from None
        if found and not self._num_left:  # the last group is in the queue shortly before the coroutine ends
            concurrent.futures.wait([self._work], timeout=_POLL_SECONDS)
        return found

    def cancel(self) -> None:
        """Cancels the incomplete groups, and aborts their requests on the servers."""
        self._num_left = 0
        self._work.cancel()

    @property
    def is_done(self) -> bool:
        """Returns whether no work of this generation is in progress."""
        return self._work.done()

    def _take(self, found: list[tuple[int, RolloutGroup]], item: tuple[int, RolloutGroup] | BaseException) -> None:
        if isinstance(item, BaseException):
            raise item
        found.append(item)
        self._num_left -= 1

    async def _generate_all(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> None:
        tasks = [
            asyncio.create_task(self._generate_group(number, prompt, sampling, group_size))
            for number, prompt in enumerate(prompts)
        ]
        try:
            await asyncio.gather(*tasks)
        except Exception as error:
            self._finished.put(error)
        finally:
            await cancel(tasks)

    async def _generate_group(self, number: int, prompt: Prompt, sampling: Sampling, group_size: int) -> None:
        samplers = [ServedSampler(self._requests, prompt.id, sampling, number) for _ in range(group_size)]
        version = self._requests.pool.version or 0
        group = await self._runner.group(prompt, sampling, samplers, policy_version=version)
        self._finished.put((number, group))


async def _mark_progress() -> None:
    """Counts as progress, unless an environment blocks the engine's thread, where all timeouts are."""
    mark_progress()
