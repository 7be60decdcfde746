"""Runs the episodes of an agent against an endpoint, and returns their trajectories."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from sspo_agents.agents import Agents
from sspo_agents.errors import AgentError
from sspo_agents.protocol import Limits, Sampler
from sspo_agents.server import EndpointServer, cancel
from sspo_agents.session import Session
from sspo_agents.template import ChatTemplate
from sspo_agents.tree import Trajectory

_MAX_UNANSWERED = 16  # episodes at the start of a run


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The conversations of an episode that has ended, and what the agent returned."""

    trajectories: Sequence[Trajectory]
    returned: Any  # None of an episode that failed
    text: str  # of the last turn
    has_failed: bool = False  # whether it raised or was late


class Episodes:
    """The episodes of an agent, within limits, and the endpoint that answers them. One event loop makes all calls."""

    def __init__(self, agents: Agents, limits: Limits) -> None:
        self._agents, self._limits = agents, limits
        self._server = EndpointServer(limits.address)
        self._slots = asyncio.Semaphore(limits.max_episodes)
        self._opening = asyncio.Lock()
        self._num_groups = 0
        self._num_unanswered, self._was_answered = 0, False

    async def run(self, prompt: Any, template: ChatTemplate, samplers: Sequence[Sampler]) -> list[EpisodeResult]:
        """Runs an episode with each sampler, at the same time.

        Args:
            prompt: passed on to the agent.
            template: the model's chat template.

        Raises:
            AgentError: the agent failed before its first turn, or in the first episodes it always raised, asked
                nothing, or all that it asked was refused. Errors of the samplers are raised as they are.
        """
        async with self._listening():
            tasks = [
                asyncio.create_task(self._run(prompt, Session(sampler, template, self._limits))) for sampler in samplers
            ]
            try:
                return await asyncio.gather(*tasks)
            finally:
                await cancel(tasks)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Opens the endpoint for the first group, and closes it after the last one."""
        async with self._opening:
            await self._server.listen()
            self._num_groups += 1
        try:
            yield
        finally:
            self._num_groups -= 1
            async with self._opening:
                if not self._num_groups:
                    await self._server.close()

    async def _run(self, prompt: Any, session: Session) -> EpisodeResult:
        async with self._slots:
            agent = asyncio.wrap_future(self._agents.begin(self._server.add(session), prompt))
            try:
                await asyncio.wait(
                    {agent, session.broken}, timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if session.broken.done():
                    session.broken.result()  # raises the engine's error
                is_late = not agent.done()
                error = None if is_late else self._error(agent, session)
                returned = None if is_late or error is not None else agent.result()
            finally:
                agent.cancel()
                await self._server.remove(session)
        self._check_answered(session, is_late=is_late)
        self._agents.check_end(error, is_refused=session.num_refused > 0)
        trajectories = session.tree.trajectories()
        self._agents.count(
            turns=session.num_turns,
            branches=len(trajectories),
            refused=session.num_refused,
            late=is_late,
            failed=error is not None,
        )
        return EpisodeResult(trajectories, returned, session.last_text, is_late or error is not None)

    def _check_answered(self, session: Session, *, is_late: bool) -> None:
        """Raises AgentError if the policy answered in none of the first episodes: then the settings are to blame."""
        self._was_answered |= session.num_turns > 0
        if self._was_answered or (session.refusal is None and (is_late or session.num_begun)):
            return
        self._num_unanswered += 1
        if self._num_unanswered < _MAX_UNANSWERED:
            return
        begin = f"the policy answered in none of the first {self._num_unanswered} episodes, because the agent"
        if session.refusal is None:
            raise AgentError(f"{begin} did not ask it: `run` has to send its requests to the `base_url` that it gets")
        raise AgentError(f"{begin}'s requests were refused: {session.refusal}")

    def _error(self, agent: "asyncio.Future[Any]", session: Session) -> BaseException | None:
        """Returns the exception of an agent that has ended; None if it raised none.

        Raises AgentError if it raised before the policy had answered or refused a request, so the policy is not to
        blame.
        """
        error = asyncio.CancelledError("the agent was cancelled") if agent.cancelled() else agent.exception()
        if error is None or session.num_begun or session.num_refused:
            return error
        raise AgentError(self._agents.describe(error)) from error
