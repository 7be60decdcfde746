"""Episodes of rollouts that progress independently, in an event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.environment.protocol import Environment, open_episode
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.types import Prompt

Observe = Callable[[str], Awaitable[str | None]]


class ServedEpisodes:
    """Opens at most `environment.max_episodes` episodes at a time, and never blocks the loop's thread.

    Args:
        environment: the environment that opens the episodes.
        template: the tokens between two turns.
    """

    def __init__(self, environment: Environment, template: TurnTemplate) -> None:
        self.template = template
        self._environment = environment
        self._slots = asyncio.Semaphore(environment.max_episodes)
        # Twice as many threads: `close` may be needed to end a running `observe`, so it must not wait for a thread.
        self._threads = ThreadPoolExecutor(2 * environment.max_episodes, thread_name_prefix="environment")

    @contextlib.asynccontextmanager
    async def episode(self, prompt: Prompt) -> AsyncIterator[Observe]:
        """Opens an episode and yields its `observe`; the episode is closed at the end, even after an error."""
        async with self._slots:
            # an environment that calls sys.exit would otherwise end the event loop, and all requests would wait forever
            episode = open_episode(self._environment, prompt)
            pending: list[Future[str | None]] = []

            def observe_in_thread(response: str) -> str | None:
                with user_code_errors("the environment"):
                    return episode.observe(response)

            def observe(response: str) -> Awaitable[str | None]:
                pending[:] = [self._threads.submit(observe_in_thread, response)]
                return asyncio.wrap_future(pending[0])

            def close() -> None:
                with user_code_errors("the environment"):
                    episode.close()
                wait(pending)  # the slot is released only after `observe` has returned

            try:
                yield observe
            finally:
                # A second cancellation of this task must not cancel `close`.
                await asyncio.shield(asyncio.wrap_future(self._threads.submit(close)))
