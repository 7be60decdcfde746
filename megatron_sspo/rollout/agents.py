"""Connects agents, which `sspo_agents` runs, with the rollout engines: prompts, samplers, rewards and rollouts."""

import copy
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from megatron_sspo.agent.errors import agent_errors_as_user_errors
from megatron_sspo.config.kinds import LARGEST
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import call_with_options, check_plugin, resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.data.template import apply_template
from megatron_sspo.errors import UserError
from megatron_sspo.reward.protocol import check_part_names
from megatron_sspo.rollout.engine import ModelText, Sampler, SchemaRejected
from megatron_sspo.rollout.responses import make_rollout
from megatron_sspo.rollout.stopping import text_of
from megatron_sspo.types import Endpoint, Prompt, RolloutGroup, Sampling, sum_of_parts
from sspo_agents.agents import Agents
from sspo_agents.episodes import EpisodeResult
from sspo_agents.episodes import Episodes as AgentRuns
from sspo_agents.errors import Refusal
from sspo_agents.protocol import Agent, Limits, Model
from sspo_agents.template import ChatTemplate
from sspo_agents.tree import Trajectory, with_common_prompt

_log = logging.getLogger(__name__)


class AgentEpisodes:
    """The episodes of an agent, see `Episodes`.

    A conversation has at most `max_prompt_tokens` and the sampling parameters' `max_tokens` together.
    """

    stop: Sequence[str] = ()
    lockstep = None

    def __init__(self, agent: Agent, endpoint: Endpoint, *, max_prompt_tokens: int) -> None:
        self.agents = Agents(agent, _describe, _log)
        self.endpoint, self.max_prompt_tokens = endpoint, max_prompt_tokens
        self._has_warned = False

    def on(self, model: ModelText) -> "AgentRunner":
        """See `Episodes.on`."""
        return AgentRunner(self, model)

    def metrics(self) -> dict[str, float]:
        """Returns means over the episodes of this process since the last call."""
        return self.agents.metrics()

    def close(self) -> None:
        """Cancels the episodes and closes the agent."""
        with agent_errors_as_user_errors():
            self.agents.close()

    def check_failure_reward(self, rewards: Sequence[float], num_failed: int) -> None:
        """Warns once if the episodes that failed or were late got more than one that the agent rewarded."""
        failed = self.endpoint.failure_reward
        if num_failed and rewards and min(rewards) < failed and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "an episode that failed got rollouts.endpoint.failure_reward=%g, and one that did not got %g: the "
                "policy learns to fail unless failure_reward is at most the agent's lowest reward",
                failed,
                min(rewards),
            )


class AgentRunner:
    """Runs an agent's episodes on one engine, see `EpisodeRunner`."""

    has_time_limit = True

    def __init__(self, episodes: AgentEpisodes, model: ModelText) -> None:
        self._episodes = episodes
        # a copy, because a tokenizer changes its state while it encodes, and the engine has its own thread
        self._tokenizer = tokenizer = copy.deepcopy(model.tokenizer)
        self._model = Model(
            tokenizer,
            render=lambda messages, tools, answered: apply_template(tokenizer, messages, tools, is_answered=answered),
            decode=partial(text_of, tokenizer=tokenizer, end_tokens=model.end_tokens),
            vocab_size=model.vocab_size,
            max_tokens=model.max_positions,
            limited_by="prompts.max_tokens + rollouts.sampling.max_tokens, or the model's positions",
        )
        limits = {name: value for name, value in asdict(episodes.endpoint).items() if name != "failure_reward"}
        self._runs = AgentRuns(episodes.agents, Limits(**limits))
        self._templates: dict[int, ChatTemplate] = {}
        self._template(model.max_positions)

    async def group(
        self, prompt: Prompt, sampling: Sampling, samplers: Sequence[Sampler], *, policy_version: int
    ) -> RolloutGroup:
        """See `EpisodeRunner.group`.

        Raises:
            UserError: the engine failed, the agent failed before its first turn, or in the first episodes it always
                raised, asked nothing, or all that it asked was refused.
        """
        limit = min(self._episodes.max_prompt_tokens + sampling.max_tokens, self._model.max_tokens)
        template = self._template(limit)
        with agent_errors_as_user_errors():
            found = await self._runs.run(prompt, template, [_AgentSampler(each) for each in samplers])
        parts = [None if each.has_failed else reward_parts(each.returned) for each in found]
        rewards = [sum_of_parts(each) for each in parts if each]
        self._episodes.check_failure_reward(rewards, parts.count(None))
        failed = {"agent": self._episodes.endpoint.failure_reward}
        rewarded = [failed if each is None else each for each in parts]
        return make_group(prompt, found, rewarded, self._tokenizer, policy_version=policy_version)

    def _template(self, max_tokens: int) -> ChatTemplate:
        with agent_errors_as_user_errors():
            if max_tokens not in self._templates:
                self._templates[max_tokens] = ChatTemplate(replace(self._model, max_tokens=max_tokens))
        return self._templates[max_tokens]


class _AgentSampler:
    """An engine's sampler, with the refusals of `sspo_agents`."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self.takes_schemas = sampler, sampler.takes_schemas
        self.split_reasoning, self.find_calls = sampler.split_reasoning, sampler.find_calls

    async def sample(self, prompt: Sequence[int], **options: Any) -> Any:
        """See `sspo_agents.protocol.Sampler.sample`."""
        try:
            return await self._sampler.sample(prompt, **options)
        except SchemaRejected as error:
            raise Refusal(f"the engine cannot follow the schema: {error}", code="constrained_decoding") from error


def make_group(
    prompt: Prompt,
    episodes: Sequence[EpisodeResult],
    rewards: Sequence[Mapping[str, float]],
    tokenizer: Any,
    *,
    policy_version: int,
) -> RolloutGroup:
    """Returns the rollouts of the episodes of one prompt, in order.

    The prompt of the group is the longest common beginning of its conversations.
    """
    trajectories = with_common_prompt([trajectory for episode in episodes for trajectory in episode.trajectories])
    common = tuple(trajectories[0].prompt) if trajectories else prompt.tokens
    remaining = iter(trajectories)
    rollouts = [
        make_rollout(
            trajectory.tokens,
            trajectory.log_probs,
            trajectory.spans,
            text=episode.text,
            finish_reason=trajectory.finish_reason,
            observed=trajectory.observed,
            tokenizer=tokenizer,
            routes=trajectory.routes,
            policy_version=policy_version,
            reward_parts=reward,
            branches=max(1, len(episode.trajectories)),
        )
        for episode, reward in zip(episodes, rewards, strict=True)
        for trajectory in ([next(remaining) for _ in episode.trajectories] or [Trajectory(common)])
    ]
    return RolloutGroup(prompt=replace(prompt, tokens=common), rollouts=rollouts)


def reward_parts(found: Any) -> dict[str, float]:
    """Returns the parts of the reward that an agent returned; a number is the part "agent", and None has no parts.

    Raises:
        UserError: the reward is neither None, nor a finite number, nor a mapping of names to finite numbers; or a
            part cannot have its name.
    """
    if found is None:
        return {}
    parts = found if isinstance(found, Mapping) else {"agent": found}
    try:
        numbers = {name: float(value) for name, value in parts.items() if not isinstance(value, str)}
    except (TypeError, ValueError, OverflowError):
        numbers = {}
    if not parts or len(numbers) < len(parts) or not all(abs(number) <= LARGEST for number in numbers.values()):
        raise UserError(
            f"an agent returned {describe_value(found)}: return a finite number, none beyond ±{LARGEST}, "
            "a dict of such numbers by name, or None for the run's reward"
        )
    check_part_names(numbers, "an agent")
    return numbers


def check_agent(name: str, options: Mapping[str, Any], tokenizer: Any) -> None:
    """Checks a run's agent before it is built.

    Raises:
        UserError: there is no agent of that name, it lacks an option, or the tokenizer has no chat template.
    """
    check_plugin("agent", name, options)
    if not tokenizer.chat_template:
        raise UserError(
            f"rollouts.agent needs a chat template, and the tokenizer {tokenizer.name_or_path!r} has none: choose a "
            "model with one, or no agent"
        )


def open_agent(name: str, options: Mapping[str, Any], endpoint: Endpoint, *, max_prompt_tokens: int) -> AgentEpisodes:
    """Builds the run's agent. The caller closes it.

    Raises:
        UserError: see `check_agent`; or the agent has no `async def run`.
    """
    agent = call_with_options(resolve("agent", name, "agent"), options, f"the agent {name!r}")
    if not inspect.iscoroutinefunction(getattr(agent, "run", None)):
        raise UserError(f"the agent {name!r} has no `async def run(self, base_url, prompt)`: define it")
    return AgentEpisodes(agent, endpoint, max_prompt_tokens=max_prompt_tokens)


def _describe(error: BaseException) -> str:
    """Returns an exception of an agent with its file and line."""
    try:
        with user_code_errors("the agent", always=True), agent_errors_as_user_errors():
            raise error
    except UserError as found:
        return str(found)
