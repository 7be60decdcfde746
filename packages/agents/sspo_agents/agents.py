"""`Agents`: runs the episodes of an agent in a thread of their own, and counts what happens."""

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from sspo_agents.errors import AgentError, describe_error
from sspo_agents.protocol import Agent

_CANCEL_SECONDS = 10.0  # for the episodes to end
_SHOWN = 3  # exceptions of episodes
_MAX_RAISED = 16  # episodes at the start of a run
_CLOSE_SECONDS = 40.0  # for the agent's own `close`; that of `verifiers` may take 30


class Agents:
    """Runs episodes of an agent. An agent that blocks its thread delays other episodes, but never the engine.

    Args:
        agent: the agent.
        describe: returns an exception of the agent as text, for messages.
        log: the logger of warnings; None: this module's.
    """

    def __init__(
        self,
        agent: Agent,
        describe: Callable[[BaseException], str] = describe_error,
        log: logging.Logger | None = None,
    ) -> None:
        self.describe, self._log = describe, log or logging.getLogger(__name__)
        self._agent = agent
        self._counts: Counter[str] = Counter()
        self._shown: list[str] = []
        self._num_raised, self._has_worked = 0, False
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()

    def begin(self, base_url: str, prompt: Any) -> "concurrent.futures.Future[Any]":
        """Begins an episode; the future's result is what the agent returns, and cancelling it cancels the agent."""
        return asyncio.run_coroutine_threadsafe(self._run(base_url, prompt), self._loop)

    async def _run(self, base_url: str, prompt: Any) -> Any:
        try:
            return await self._agent.run(base_url, prompt)
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the event loop, and with it all episodes
            why = f"{error!r}: an agent must return or raise another exception instead"
            raise RuntimeError(why).with_traceback(error.__traceback__) from error

    def count(self, **numbers: float) -> None:
        """Adds the numbers of one finished episode to the metrics."""
        with self._lock:
            self._counts.update({"episodes": 1, **numbers})  # pyright: ignore[reportArgumentType]

    def check_end(self, error: BaseException | None, *, is_refused: bool) -> None:
        """Shows the first exceptions of episodes.

        Args:
            error: the agent's exception; None if it raised none.
            is_refused: whether a request of the episode was refused; then the limits may be to blame, or the policy.

        Raises:
            AgentError: all of the first episodes raised, so the agent is to blame.
        """
        if error is None:
            self._has_worked = True
            return
        text = self.describe(error)
        with self._lock:
            is_shown = text in self._shown or len(self._shown) == _SHOWN
            self._shown += [] if is_shown else [text]
            self._num_raised += not is_refused
        if not is_shown:
            self._log.warning("an episode counts as failed, because the agent raised: %s", text)
        if self._num_raised >= _MAX_RAISED and not self._has_worked:
            raise AgentError(
                f"the agent raised in each of the first {self._num_raised} episodes: {text}. Where the policy's answer "
                "is to blame, let it return a reward"
            )

    def metrics(self) -> dict[str, float]:
        """Returns means over the episodes of this process since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        episodes = counts.pop("episodes", 0)
        return {name: total / episodes for name, total in counts.items()} if episodes else {}

    def close(self) -> None:
        """Cancels the episodes, closes the agent and ends the thread, once. Raises AgentError if its `close` raised."""
        if self._loop.is_closed():
            return
        closed = None
        if _wait(asyncio.run_coroutine_threadsafe(_cancel_all_others(), self._loop), _CANCEL_SECONDS):
            closed = asyncio.run_coroutine_threadsafe(self._close_agent(), self._loop)
            _wait(closed, _CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_CANCEL_SECONDS)
        if not self._thread.is_alive():  # an agent that blocks its thread keeps it until the process ends
            self._loop.close()
        if closed is not None and closed.done() and (error := closed.exception()) is not None:
            raise AgentError(f"the agent's close failed: {self.describe(error)}") from error

    async def _close_agent(self) -> None:
        close = getattr(self._agent, "close", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS) as limit:
                if inspect.isawaitable(ending := close()):
                    await ending
        except TimeoutError:
            if not limit.expired():
                raise
            self._log.warning("the agent's close did not end within %g s, and was cancelled", _CLOSE_SECONDS)


async def _cancel_all_others() -> None:
    """Cancels all other tasks of the running event loop and waits for their end; their errors are ignored."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    ended, _ = await asyncio.wait(tasks, timeout=_CANCEL_SECONDS) if tasks else (tasks, tasks)
    await asyncio.gather(*ended, return_exceptions=True)  # otherwise asyncio prints errors that nobody has looked at


def _wait(work: "concurrent.futures.Future[Any]", seconds: float) -> bool:
    """Waits a second longer than work may take, and returns whether it is done."""
    return bool(concurrent.futures.wait([work], timeout=seconds + 1.0).done)
