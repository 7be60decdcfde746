"""The interface between a run and an agent."""

import math
import numbers
from collections.abc import Mapping
from typing import Any, Protocol

from megatron_sspo.config.kinds import LARGEST
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.part_names import check_part_names
from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt

Reward = float | Mapping[str, float] | None


class Agent(Protocol):
    """A program that calls the policy as often and with whatever messages it likes.

    `megatron_sspo/agent/<name>.py` defines `agent(**options)`, a function or a class that makes an agent. If the agent
    has an `async def close(self)`, this is called at the end.
    """

    async def run(self, base_url: str, prompt: Prompt) -> Reward:
        """Runs one episode: works on the prompt with the policy at `base_url`, and rewards the result.

        Episodes run at the same time, in one event loop in a thread of their own. After `seconds` of the run's
        `Endpoint` an episode is cancelled.

        Args:
            base_url: the address for a client of OpenAI's API. Its path contains the episode's key.
            prompt: the question: `messages` is the chat that the prompts' source renders, `answer` the gold answer.

        Returns:
            The reward, or its parts by name. None leaves the reward to the run's `reward`, which scores the text of
            the episode's last turn.
        """
        ...


def reward_parts(found: Any) -> dict[str, float]:
    """Returns the parts of the reward that an agent returned; a number is the part "agent", and None has no parts.

    Raises:
        UserError: the reward is neither None, nor a finite number, nor a mapping of names to finite numbers; or a
            part cannot have its name.
    """
    if found is None:
        return {}
    parts = found if isinstance(found, Mapping) else {"agent": found}
    if not parts or not all(isinstance(name, str) and _is_number(value) for name, value in parts.items()):
        raise UserError(
            f"an agent returned {describe_value(found)}: return a finite number, none beyond ±{LARGEST}, "
            "a dict of such numbers by name, or None for the run's reward"
        )
    check_part_names(parts, "an agent")
    return {name: float(value) for name, value in parts.items()}


def _is_number(value: Any) -> bool:
    size: Any = abs(value) if isinstance(value, numbers.Real) else math.nan
    return bool(size <= LARGEST)  # NaN is not
