"""`open_parts`: the rewards and environments of a run and of its held-out sets."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from megatron_sspo.config.user_code import call_user_code
from megatron_sspo.evaluation.sets import open_environments, open_rewards
from megatron_sspo.reward.protocol import Reward, open_reward
from megatron_sspo.rollout.engine import Episodes
from megatron_sspo.rollout.open_episodes import open_episodes
from megatron_sspo.run import Run


@dataclass(frozen=True)
class Parts:
    """The parts that score and drive the rollouts of a run.

    Attributes:
        reward: the reward of training.
        environment: the environment or the agent of training; None if its rollouts are single turns.
        held_out_rewards, held_out_environments: those of each held-out set, by its name.
    """

    reward: Reward
    environment: Episodes | None
    held_out_rewards: Mapping[str, Reward]
    held_out_environments: Mapping[str, Episodes | None]


@contextmanager
def open_parts(run: Run) -> Iterator[Parts]:
    """Opens the parts of a run; the context closes them.

    Raises:
        UserError: a part cannot be built, lacks a method, or cannot be closed.
    """
    with ExitStack() as stack:
        reward = open_reward(run.reward, run.reward_options)
        stack.callback(call_user_code, reward.close, "the reward's close")
        rewards = open_rewards(run, stack, reward)
        environment = stack.enter_context(open_episodes(run.rollouts, max_prompt_tokens=run.prompts.max_tokens))
        yield Parts(reward, environment, rewards, open_environments(run, stack, environment))
