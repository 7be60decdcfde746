"""What the loop asks of whatever judges the responses."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt


class Reward(Protocol):
    """Scores responses in named parts, such as `{"answer": 1.0, "format": 0.5}`; r_i is their sum.

    `megatron_sspo/reward/<name>.py` defines `reward(**options)`, which builds one. One that also has
    `metrics() -> dict[str, float]`, the numbers since its last call, finds them in the run's rows as `reward/<name>`.
    Where the module also defines `check_prompt(prompt)`, which raises UserError for a row that cannot be judged, it is
    asked about every prompt before anything starts.
    """

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """One dictionary for each pair of prompt and response, in order. May be called from any thread."""
        ...

    def close(self) -> None:
        """Gives back processes and files. More than one call does no harm."""
        ...


def check_prompts(build: Callable[..., Reward], prompts: Iterable[Prompt]) -> None:
    """Asks the module of a reward about prompts, where it has a `check_prompt`.

    Args:
        build: the module's `reward`, or what is named in its place.

    Raises:
        UserError: a row cannot be judged; the message names the prompt.
    """
    check = getattr(inspect.getmodule(build), "check_prompt", None)
    if check is not None:
        for prompt in prompts:
            check(prompt)


def checked_score(reward: Reward, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
    """`reward.score`, refused where one NaN would spoil a whole group's advantages in silence.

    Raises:
        UserError: a part is not a finite number (the message names the prompt), or there is not one score a response.
    """
    scores = reward.score(prompts, responses)
    if len(scores) != len(responses):
        raise UserError(
            f"{type(reward).__name__}.score gave {len(scores)} scores for {len(responses)} responses: "
            "it has to return one for each"
        )
    for prompt, parts in zip(prompts, scores, strict=True):
        for part, value in parts.items():
            if not math.isfinite(value):
                raise UserError(
                    f"the reward part {part!r} of a response to prompt {prompt.id!r} is {value}: "
                    f"{type(reward).__name__}.score has to return finite numbers"
                )
    return scores
