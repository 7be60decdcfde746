"""Rewards whose `score` is async: responses side by side, with retries, a time-out, and a price for failures."""

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from megatron_sspo.config.user_code import metrics_of, user_code_errors
from megatron_sspo.errors import UserError
from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.types import Prompt

_log = logging.getLogger(__name__)

_FIRST = 16  # responses that may all fail before it is the reward that is at fault
_IN_A_ROW = 64  # the same once it has scored one; at least two rounds of `max_requests`, which one outage fails at once
_LONGEST_PAUSE = 30.0  # seconds before another attempt


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of an async reward, its attribute `limits`."""

    max_requests: int = 32  # responses that each process scores at a time
    timeout: float = 60.0  # seconds of an attempt
    retries: int = 3  # further attempts, after 1, 2, 4, ... seconds, where one raised or was late
    failure_reward: float = 0.0  # the reward of a response whose attempts all failed: its only part, "failure"

    def __post_init__(self) -> None:
        if self.max_requests < 1 or self.retries < 0 or self.timeout <= 0:
            raise UserError(f"{self}: max_requests must be 1 or more, retries 0 or more, timeout above 0")


class Unscorable(Exception):
    """A failure that another attempt would repeat, such as a request that is refused: `score` is not called again."""


class AsyncReward(Protocol):
    """Scores a response by waiting, as for a server. `open_reward` makes a `Reward` of it: see `AwaitedReward`.

    It may have attributes `limits` and `name`, by which errors call it, and the optional methods of `Reward`.
    """

    async def score(self, prompt: Prompt, response: str) -> Mapping[str, float] | None:
        """Returns the parts of one response's reward; None if the reward does not apply to the prompt's row.

        It runs in an event loop of its own, beside the other responses, so it must not block. It may be cancelled.
        """
        ...

    async def close(self) -> None:
        """Closes connections. It may also be a plain function."""
        ...


class AwaitedReward:
    """A `Reward` that awaits an async one, within its limits, in an event loop of its own thread.

    A response fails if each of its attempts raises or is late. It then has the part "failure", and no other. The reward
    is at fault, and `score` raises UserError, if the first 16 responses that end all fail, or later 64 in a row, or
    2 · `max_requests` if that is more.
    """

    def __init__(self, awaited: Any) -> None:
        self.awaited = awaited
        self._limits: Limits = getattr(awaited, "limits", Limits())
        self._slots = asyncio.Semaphore(self._limits.max_requests)
        self._lock = threading.Lock()  # of the counts, which `metrics` reads in another thread
        self._counts: Counter[str] = Counter()
        self._seconds, self._num_failed, self._num_in_a_row = 0.0, 0, 0
        self._allowed = _FIRST  # failures in a row
        self._name = getattr(awaited, "name", type(awaited).__name__)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward", daemon=True)
        self._thread.start()

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Any]:
        """Returns what the async `score` returned for each pair of prompt and response, in order."""
        return asyncio.run_coroutine_threadsafe(self._score_all(prompts, responses), self._loop).result()

    def remarks(self, prompts: Sequence[Prompt]) -> Iterable[str]:
        """Returns the reward's own remarks."""
        return getattr(self.awaited, "remarks", lambda prompts: ())(prompts)

    def metrics(self) -> dict[str, float]:
        """Returns, since the last call, the share of failed responses, and the retries and seconds per response."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            seconds, self._seconds = self._seconds, 0.0
        own = {"failed": counts["failed"], "retries": counts["retries"], "seconds": seconds}
        number = counts["scored"] + counts["failed"]
        means = {name: value / number for name, value in own.items()} if number else {}
        return {**metrics_of(self.awaited, "the reward"), **means}

    def close(self) -> None:
        """Cancels what is in progress and closes the reward."""
        if self._loop.is_closed():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = self.awaited.close()
        if inspect.isawaitable(closing):
            await closing

    async def _score_all(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Any]:
        return await asyncio.gather(*(self._score(*pair) for pair in zip(prompts, responses, strict=True)))

    async def _score(self, prompt: Prompt, response: str) -> Any:
        limits, error = self._limits, Exception()
        async with self._slots:
            start = time.monotonic()
            for attempt in range(1 + limits.retries):
                if attempt:
                    self._count("retries")
                    await asyncio.sleep(min(2.0 ** (attempt - 1), _LONGEST_PAUSE))
                mark_progress()
                try:
                    async with asyncio.timeout(limits.timeout):
                        found = await self.awaited.score(prompt, response)
                    self._num_in_a_row = 0
                    self._allowed = max(_IN_A_ROW, 2 * limits.max_requests)
                    self._count("scored", time.monotonic() - start)
                    return found
                except UserError:
                    raise
                except Exception as raised:
                    error = raised
                    if isinstance(raised, Unscorable):
                        break
            self._count("failed", time.monotonic() - start)
            self._report(error)
            return {"failure": limits.failure_reward}

    def _count(self, what: str, seconds: float = 0.0) -> None:
        with self._lock:
            self._counts[what] += 1
            self._seconds += seconds

    def _report(self, error: Exception) -> None:
        """Warns of the first, second, fourth, eighth, ... failure."""
        self._num_failed += 1
        self._num_in_a_row += 1
        try:
            with user_code_errors(f"{type(self.awaited).__name__}.score", always=True):
                raise error
        except UserError as found:
            said = str(found)
        if isinstance(error, TimeoutError) and not str(error):
            said += f" (an attempt has {self._limits.timeout:g} s)"
        if self._num_in_a_row >= self._allowed:
            raise UserError(
                f"the reward {self._name} could score none of the last {self._allowed} responses; the last failed so: "
                f"{said}; when it works again, resume the run, and give it more retries if it was only restarted"
            ) from error
        if self._num_failed & (self._num_failed - 1) == 0:
            text = "the reward %s failed to score %d of its responses so far, which have the reward %g: %s"
            _log.warning(text, self._name, self._num_failed, self._limits.failure_reward, said)
