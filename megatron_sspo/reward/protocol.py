"""The interface between the training loop and the rewards."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt


class Reward(Protocol):
    """Scores responses in named parts, such as `{"answer": 1.0, "format": 0.5}`; r_i is their sum.

    `megatron_sspo/reward/<name>.py` defines `reward(**options)`, which builds a reward. A reward may also have
    `metrics() -> dict[str, float]`, the numbers since its last call; they are logged in the run's rows as
    `reward/<name>`. The module may also define `check_prompt(prompt)`, which raises UserError for a row that cannot be
    judged; it is called with every prompt before the run starts. A module's `check_values(**options)` raises UserError
    for options that `reward` would refuse; it is called before the run starts, maybe on another machine.
    """

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """Returns a dictionary for each pair of prompt and response, in order. It may be called from any thread."""
        ...

    def close(self) -> None:
        """Ends processes and closes files. It may be called more than once."""
        ...


def check_prompts(build: Callable[..., Reward], prompts: Iterable[Prompt]) -> None:
    """Calls the `check_prompt` of a reward's module, if it has one, with each prompt.

    Args:
        build: the module's `reward`, or the function that is named in its place.

    Raises:
        UserError: a row cannot be judged; the message names the prompt.
    """
    check = getattr(inspect.getmodule(build), "check_prompt", None)
    if check is not None:
        for prompt in prompts:
            check(prompt)


def checked_score(reward: Reward, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
    """Returns `reward.score`, checked: a single NaN would silently make a whole group's advantages NaN.

    Raises:
        UserError: a part is not a finite number (the message names the prompt), or a score is missing.
    """
    scores = reward.score(prompts, responses)
    if len(scores) != len(responses):
        raise UserError(
            f"{type(reward).__name__}.score gave {len(scores)} scores for {len(responses)} responses: "
            "it must return one for each"
        )
    for prompt, parts in zip(prompts, scores, strict=True):
        for part, value in parts.items():
            if not math.isfinite(value):
                raise UserError(
                    f"the reward part {part!r} of a response to prompt {prompt.id!r} is {value}: "
                    f"{type(reward).__name__}.score must return finite numbers"
                )
    return scores
