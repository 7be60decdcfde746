"""Builds the reward, the environment and the agent of a run on the machine that checks it, and closes them."""

from contextlib import ExitStack

from megatron_sspo.config.user_code import call_user_code
from megatron_sspo.environment.open import open_environment
from megatron_sspo.evaluation.sets import open_environments, open_rewards
from megatron_sspo.reward.protocol import open_reward
from megatron_sspo.run import Run


def check_parts(run: Run) -> None:
    """Builds the parts that score and drive rollouts, those of held-out sets included, as the start of the run does.

    The engine is not built, because that would start its servers.

    Raises:
        UserError: a part cannot be built, lacks a method, or cannot be closed.
    """
    with ExitStack() as stack:
        reward = open_reward(run.reward, run.reward_options)
        stack.callback(call_user_code, reward.close, "the reward's close")
        open_rewards(run, stack, reward)
        environment = stack.enter_context(open_environment(run.rollouts, max_prompt_tokens=run.prompts.max_tokens))
        open_environments(run, stack, environment)
