"""The environment that a run names."""

from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.resolve import call_with_options, check_options, resolve
from megatron_sspo.rollout.turns import TurnTemplate
from megatron_sspo.run import Rollouts


def check_environment(rollouts: Rollouts, tokenizer: Any) -> None:
    """Finds what is wrong with a run's environment before it is opened; without one, nothing.

    Raises:
        UserError: there is none of that name, it has no such option, or the tokenizer's chat template has no turns.
    """
    if rollouts.environment:
        check_options(_builder(rollouts), rollouts.environment_options, _what(rollouts))
        TurnTemplate(tokenizer)


def open_environment(rollouts: Rollouts) -> AbstractContextManager[Environment | None]:
    """The environment, closed with the context; None where a rollout is a single turn.

    Raises:
        UserError: see `check_environment`, or what the environment needs is not there.
    """
    if not rollouts.environment:
        return nullcontext()
    return closing(call_with_options(_builder(rollouts), rollouts.environment_options, _what(rollouts)))


def _builder(rollouts: Rollouts) -> Any:
    return resolve("environment", rollouts.environment, "environment")


def _what(rollouts: Rollouts) -> str:
    return f"the environment {rollouts.environment!r}"
