"""`open_parts`: the rewards and environments of a run and of its held-out sets."""

import json
from collections.abc import Callable, Iterator, Mapping
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
    """Opens the parts of a run; the context closes them."""
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
        self._known: dict[str, Any] = {}

    def held_out(self, run: Run) -> HeldOutParts:
        return {
            name: (self.reward(*reward_of(run, each)), self.environment(rollouts_of(run, each), each.prompts))
            for name, each in sets_of(run).items()
        }

    def reward(self, name: str, options: Mapping[str, Any]) -> Reward:
        def build() -> Reward:
            reward = open_reward(name, options)
            self._stack.callback(call_user_code, reward.close, "the reward's close")
            return reward

        return self._once(["reward", name, dict(options)], build)

    def environment(self, rollouts: Rollouts, prompts: Prompts) -> Episodes | None:
        key = [rollouts.environment, dict(rollouts.environment_options)]
        if rollouts.agent:  # which is opened with the limit on a prompt's tokens
            key = [rollouts.agent, dict(rollouts.agent_options), prompts.max_tokens]
        opened = open_episodes(rollouts, max_prompt_tokens=prompts.max_tokens)
        return self._once(["episodes", *key], lambda: self._stack.enter_context(opened))

    def _once(self, key: list[Any], build: Callable[[], Any]) -> Any:
        text = json.dumps(key, sort_keys=True, default=str)
        if text not in self._known:
            self._known[text] = build()
        return self._known[text]
