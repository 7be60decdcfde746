"""`open_parts`: the rewards and environments of a run and of its held-out sets."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from megatron_sspo.config.user_code import call_user_code
from megatron_sspo.evaluation.sets import reward_of, rollouts_of, sets_of
from megatron_sspo.reward.protocol import Reward, open_reward
from megatron_sspo.rollout.engine import Episodes
from megatron_sspo.rollout.open_episodes import open_episodes
from megatron_sspo.run import Prompts, Rollouts, Run

HeldOutParts = Mapping[str, tuple[Reward, Episodes | None]]
"""The reward and the environment of each held-out set, by its name."""


@dataclass(frozen=True)
class Parts:
    """The parts that score and drive the rollouts of a run."""

    reward: Reward  # of training
    environment: Episodes | None  # or the agent, of training; None if its rollouts are single turns
    held_out: HeldOutParts


@contextmanager
def open_parts(run: Run) -> Iterator[Parts]:
    """Opens the parts of a run; the context closes them.

    Raises:
        UserError: a part cannot be built, lacks a method, or cannot be closed.
    """
    with ExitStack() as stack:
        opened = _Opened(stack)
        reward = opened.reward(run.reward, run.reward_options)
        environment = opened.environment(run.rollouts, run.prompts)
        yield Parts(reward, environment, opened.held_out(run))


@contextmanager
def open_held_out_parts(run: Run) -> Iterator[HeldOutParts]:
    """Opens the parts of the run's held-out sets alone; the context closes them."""
    with ExitStack() as stack:
        yield _Opened(stack).held_out(run)


class _Opened:
    """Parts by their names and options: those of the same name and options are one instance."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._rewards: dict[str, Reward] = {}
        self._environments: dict[str, Episodes | None] = {}

    def held_out(self, run: Run) -> HeldOutParts:
        return {
            name: (
                self.reward(*reward_of(run, held_out)),
                self.environment(rollouts_of(run, held_out), held_out.prompts),
            )
            for name, held_out in sets_of(run).items()
        }

    def reward(self, name: str, options: Mapping[str, Any]) -> Reward:
        key = _key(name, options)
        if key not in self._rewards:
            self._rewards[key] = open_reward(name, options)
            self._stack.callback(call_user_code, self._rewards[key].close, "the reward's close")
        return self._rewards[key]

    def environment(self, rollouts: Rollouts, prompts: Prompts) -> Episodes | None:
        key = _key(rollouts.environment, rollouts.environment_options)
        if rollouts.agent:  # which is opened with the limit on a prompt's tokens
            key = _key(rollouts.agent, rollouts.agent_options, prompts.max_tokens)
        if key not in self._environments:
            opened = open_episodes(rollouts, max_prompt_tokens=prompts.max_tokens)
            self._environments[key] = self._stack.enter_context(opened)
        return self._environments[key]


def _key(name: str, options: Mapping[str, Any], *more: Any) -> str:
    return json.dumps([name, dict(options), *more], sort_keys=True, default=str)
