"""Turns that are requested one by one: they wait in a queue, and the engine's thread decodes them in batches."""

import asyncio
import concurrent.futures
import queue
import random
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.rollout.engine import Sampled
from megatron_sspo.rollout.tasks import cancel_all_others

_POLL_SECONDS = 0.5
_GATHER_SECONDS = 0.01  # in which another turn joins the batch


@dataclass(frozen=True, slots=True, eq=False)
class WaitingTurn:
    """A turn that waits for the engine."""

    prompt: Sequence[int]
    max_tokens: int
    stop: tuple[str, ...]
    uniforms: random.Random
    result: "concurrent.futures.Future[Sampled]" = field(default_factory=concurrent.futures.Future)


TurnQueue = queue.SimpleQueue[WaitingTurn | None]
"""The turns that wait for the engine: put in by the endpoint's thread, and taken by the engine's. None wakes it."""


def take(waiting: TurnQueue) -> list[WaitingTurn]:
    """Waits for a turn or None, and returns the waiting turns and the turns that come shortly after.

    Turns whose requests were cancelled are left out.
    """
    found: list[WaitingTurn | None] = []
    while not found:
        try:
            found.append(waiting.get(timeout=_POLL_SECONDS))
            while found[-1] is not None:
                found.append(waiting.get(timeout=_GATHER_SECONDS))
        except queue.Empty:
            mark_progress()  # an episode has a time limit
    return [turn for turn in found if turn is not None and turn.result.set_running_or_notify_cancel()]


class QueuedSampler:
    """The sampler of one episode; `stream` returns the random numbers of a turn, by its number."""

    takes_schemas = False

    def __init__(self, turns: TurnQueue, stream: Callable[[int], random.Random]) -> None:
        self._turns, self._stream = turns, stream

    async def sample(
        self, prompt: Sequence[int], *, max_tokens: int, stop: tuple[str, ...] = (), number: int = 0, schema: str = ""
    ) -> Sampled:
        """Waits until the engine has decoded the turn."""
        turn = WaitingTurn(prompt, max_tokens, stop, self._stream(number))
        self._turns.put(turn)
        return await asyncio.wrap_future(turn.result)

    async def split_reasoning(self, text: str) -> None:
        """Returns None: the engine has no parsers."""

    async def find_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Returns None: the engine has no parsers."""


@contextmanager
def event_loop() -> "Iterator[Callable[[Coroutine[Any, Any, Any]], concurrent.futures.Future[Any]]]":
    """Runs an event loop in a thread, and yields the function that starts a coroutine there; cancels all at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="endpoint", daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop)
    finally:
        asyncio.run_coroutine_threadsafe(cancel_all_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
