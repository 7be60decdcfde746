"""Runs the episodes of an agent on an engine."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from megatron_sspo.agent.agents import Agents
from megatron_sspo.agent.protocol import reward_parts
from megatron_sspo.agent.tasks import cancel
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.agents.groups import EpisodeResult, make_group
from megatron_sspo.rollout.agents.server import EndpointServer
from megatron_sspo.rollout.agents.session import Sampler, Session
from megatron_sspo.rollout.agents.template import ChatTemplate
from megatron_sspo.types import Prompt, RolloutGroup, Sampling, sum_of_parts

_MAX_UNANSWERED = 16  # episodes at the start of a run


class AgentEpisodes:
    """The episodes of an agent on one engine, and the endpoint that answers them. One event loop makes all calls.

    Args:
        agents: the agent.
        tokenizer: the model's tokenizer.
        end_tokens: the tokens that end an answer.
        max_positions: the largest number of tokens of a sequence of the model.
        vocab_size: the number of tokens of the model.

    Raises:
        UserError: see `ChatTemplate`.
    """

    def __init__(
        self, agents: Agents, tokenizer: Any, *, end_tokens: Collection[int], max_positions: int, vocab_size: int
    ) -> None:
        # a copy, because a tokenizer changes its state while it encodes, and the engine has its own thread
        self._agents, self._tokenizer = agents, copy.deepcopy(tokenizer)
        self._template = ChatTemplate(self._tokenizer)
        self._end_tokens, self._max_positions, self._vocab_size = end_tokens, max_positions, vocab_size
        self._server = EndpointServer(agents.limits.address)
        self._slots = asyncio.Semaphore(agents.limits.max_episodes)
        self._opening = asyncio.Lock()
        self._num_groups = 0
        self._num_unanswered, self._was_answered = 0, False

    async def group(
        self, prompt: Prompt, sampling: Sampling, samplers: Sequence[Sampler], *, policy_version: int
    ) -> RolloutGroup:
        """Runs an episode with each sampler, at the same time, and returns their rollouts.

        Args:
            policy_version: the version of an episode in which nothing was sampled.

        Raises:
            UserError: the engine failed, the agent failed before its first turn, or in the first episodes it always
                raised, asked nothing, or all that it asked was refused.
        """
        async with self._listening():
            tasks = [asyncio.create_task(self._run(prompt, sampling, sampler)) for sampler in samplers]
            try:
                episodes = await asyncio.gather(*tasks)
            finally:
                await cancel(tasks)
        rewards = [sum_of_parts(each.reward) for each in episodes if each.reward and not each.has_failed]
        self._agents.check_failure_reward(rewards, sum(each.has_failed for each in episodes))
        return make_group(prompt, episodes, self._tokenizer, policy_version=policy_version)

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

    async def _run(self, prompt: Prompt, sampling: Sampling, sampler: Sampler) -> EpisodeResult:
        async with self._slots:
            limits = self._agents.limits
            max_tokens = min(self._agents.max_prompt_tokens + sampling.max_tokens, self._max_positions)
            session = Session(
                sampler,
                self._template,
                self._tokenizer,
                limits,
                end_tokens=self._end_tokens,
                max_tokens=max_tokens,
                vocab_size=self._vocab_size,
            )
            agent = asyncio.wrap_future(self._agents.begin(self._server.add(session), prompt))
            try:
                await asyncio.wait({agent, session.broken}, timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
                if session.broken.done():
                    session.broken.result()  # raises the engine's error
                is_late = not agent.done()
                error = _error(agent, session) if agent.done() else None
                reward = None if is_late or error is not None else reward_parts(agent.result())
            finally:
                agent.cancel()
                await self._server.remove(session)
        self._check_answered(session, is_late=is_late)
        self._agents.check_end(error, is_refused=session.num_refused > 0)
        if session.tree.turns:
            first = len(session.tree.turns[0].prompt)
            self._agents.check_room(first, max_tokens - first, sampling.max_tokens)
        trajectories = session.tree.trajectories()
        self._agents.count(
            turns=session.num_turns,
            branches=len(trajectories),
            refused=session.num_refused,
            late=is_late,
            failed=error is not None,
        )
        failed = {"agent": limits.failure_reward}
        return EpisodeResult(trajectories, failed if reward is None else reward, session.last_text, reward is None)

    def _check_answered(self, session: Session, *, is_late: bool) -> None:
        """Raises UserError if the policy answered in none of the first episodes: then the settings are to blame."""
        self._was_answered |= session.num_turns > 0
        if self._was_answered or (session.refusal is None and (is_late or session.num_begun)):
            return
        self._num_unanswered += 1
        if self._num_unanswered < _MAX_UNANSWERED:
            return
        begin = f"the policy answered in none of the first {self._num_unanswered} episodes, because the agent"
        if session.refusal is None:
            raise UserError(f"{begin} did not ask it: `run` has to send its requests to the `base_url` that it gets")
        raise UserError(f"{begin}'s requests were refused: {session.refusal}")


def _error(agent: "asyncio.Future[Any]", session: Session) -> BaseException | None:
    """Returns what an agent that has ended raised; None if it did not.

    Raises:
        UserError: the agent raised before the policy had answered or refused a request, so the policy is not to blame.
    """
    error = asyncio.CancelledError("the agent was cancelled") if agent.cancelled() else agent.exception()
    if error is None or session.num_begun or session.num_refused:
        return error
    with user_code_errors("the agent", always=True):
        raise error
