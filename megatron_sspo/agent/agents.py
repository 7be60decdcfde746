"""`Agents`: runs the episodes of an agent in a thread of their own, and counts what happens."""

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from megatron_sspo.agent.protocol import Agent
from megatron_sspo.agent.tasks import cancel_all_others
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.errors import UserError
from megatron_sspo.types import Endpoint, Prompt

_log = logging.getLogger(__name__)

_CANCEL_SECONDS = 10.0  # for the episodes to end
_SHOWN = 3  # exceptions of episodes
_MAX_RAISED = 16  # episodes at the start of a run
_CLOSE_SECONDS = 40.0  # for the agent's own `close`; that of `verifiers` may take 30


class Agents:
    """An agent and its limits. An agent that blocks its thread delays other episodes, but never the engine.

    Args:
        agent: the agent.
        limits: the limits of an episode.
        max_prompt_tokens: the largest number of tokens of a prompt; with the sampling parameters' `max_tokens` it
            bounds a conversation.
    """

    stop: Sequence[str] = ()

    def __init__(self, agent: Agent, limits: Endpoint, *, max_prompt_tokens: int) -> None:
        self.limits, self.max_prompt_tokens = limits, max_prompt_tokens
        self._agent = agent
        self._counts: Counter[str] = Counter()
        self._shown: list[str] = []
        self._num_raised, self._has_worked = 0, False
        self._has_little_room = self._is_failing_better = False  # what was warned of
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()

    def begin(self, base_url: str, prompt: Prompt) -> "concurrent.futures.Future[Any]":
        """Begins an episode; the future's result is what the agent returns, and cancelling it cancels the agent."""
        return asyncio.run_coroutine_threadsafe(self._run(base_url, prompt), self._loop)

    async def _run(self, base_url: str, prompt: Prompt) -> Any:
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
            error: what the agent raised; None if it did not.
            is_refused: whether a request of the episode was refused; then the limits may be to blame, or the policy.

        Raises:
            UserError: all of the first episodes raised, so the agent is to blame.
        """
        if error is None:
            self._has_worked = True
            return
        text = _describe(error)
        with self._lock:
            is_shown = text in self._shown or len(self._shown) == _SHOWN
            self._shown += [] if is_shown else [text]
            self._num_raised += not is_refused
        if not is_shown:
            _log.warning("an episode counts as failed, because the agent raised: %s", text)
        if self._num_raised >= _MAX_RAISED and not self._has_worked:
            raise UserError(
                f"the agent raised in each of the first {self._num_raised} episodes: {text}. Where the policy's answer "
                "is to blame, let it return a reward"
            )

    def check_failure_reward(self, rewards: Sequence[float], num_failed: int) -> None:
        """Warns once if episodes that failed or were late got more than one that the agent rewarded.

        Args:
            rewards: of the group's episodes that the agent rewarded.
            num_failed: the number of the others.
        """
        if num_failed and rewards and min(rewards) < self.limits.failure_reward and not self._is_failing_better:
            self._is_failing_better = True
            _log.warning(
                "an episode that failed got rollouts.endpoint.failure_reward=%g, and one that did not got %g: the "
                "policy learns to fail unless failure_reward is at most the agent's lowest reward",
                *(self.limits.failure_reward, min(rewards)),
            )

    def check_room(self, num_prompt_tokens: int, room: int, max_tokens: int) -> None:
        """Warns once if the first request of an episode leaves less than half of `max_tokens` for answers."""
        if room < max_tokens / 2 and not self._has_little_room:
            self._has_little_room = True
            _log.warning(
                "an agent's first request has %d tokens with its tools, which leaves %d of "
                "rollouts.sampling.max_tokens=%d for all answers: raise prompts.max_tokens=%d, or make it shorter",
                *(num_prompt_tokens, room, max_tokens, self.max_prompt_tokens),
            )

    def metrics(self) -> dict[str, float]:
        """Returns means over the episodes of this process since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        episodes = counts.pop("episodes", 0)
        return {name: total / episodes for name, total in counts.items()} if episodes else {}

    def close(self) -> None:
        """Cancels the episodes, closes the agent and ends the thread. A second call does nothing.

        Raises:
            UserError: the agent's `close` raised.
        """
        if self._loop.is_closed():
            return
        closed = None
        if _wait(asyncio.run_coroutine_threadsafe(cancel_all_others(_CANCEL_SECONDS), self._loop), _CANCEL_SECONDS):
            closed = asyncio.run_coroutine_threadsafe(self._close_agent(), self._loop)
            _wait(closed, _CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_CANCEL_SECONDS)
        if not self._thread.is_alive():  # an agent that blocks its thread keeps it until the process ends
            self._loop.close()
        if closed is not None and closed.done():
            with user_code_errors("the agent's close", always=True):
                closed.result()

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
            _log.warning("the agent's close did not end within %g s, and was cancelled", _CLOSE_SECONDS)


def _describe(error: BaseException) -> str:
    """Returns an exception of an agent with its file and line."""
    try:
        with user_code_errors("the agent", always=True):
            raise error
    except UserError as found:
        return str(found)


def _wait(work: "concurrent.futures.Future[Any]", seconds: float) -> bool:
    """Waits a second longer than work may take, and returns whether it is done."""
    return bool(concurrent.futures.wait([work], timeout=seconds + 1.0).done)
