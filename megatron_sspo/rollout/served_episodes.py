"""Episodes of rollouts that go on each at its own pace, in an event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.rollout.turns import TurnTemplate
from megatron_sspo.types import Prompt

Observe = Callable[[str], Awaitable[str | None]]


class ServedEpisodes:
    """Opens no more than `environment.max_episodes` at a time, and waits for none of them in the loop's thread.

    Args:
        template: what is between two turns.
    """

    def __init__(self, environment: Environment, template: TurnTemplate) -> None:
        self.template = template
        self._environment = environment
        self._places = asyncio.Semaphore(environment.max_episodes)
        # twice as many: to close an episode may be what ends its observation, and must not wait behind others
        self._threads = ThreadPoolExecutor(2 * environment.max_episodes, thread_name_prefix="environment")

    @contextlib.asynccontextmanager
    async def episode(self, prompt: Prompt) -> AsyncIterator[Observe]:
        """The `observe` of an episode, which is closed at the end, whatever that is."""
        async with self._places:
            episode = self._environment.open(prompt)
            under_way: list[Future[str | None]] = []

            def observe(response: str) -> Awaitable[str | None]:
                under_way[:] = [self._threads.submit(episode.observe, response)]
                return asyncio.wrap_future(under_way[0])

            def close() -> None:
                episode.close()
                wait(under_way)  # its place is another's when nothing of it is at work

            try:
                yield observe
            finally:
                # what cancels this twice must not cancel that
                await asyncio.shield(asyncio.wrap_future(self._threads.submit(close)))
