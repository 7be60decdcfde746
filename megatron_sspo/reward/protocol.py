"""The interface between the training loop and the rewards."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from megatron_sspo.config.kinds import LARGEST
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import call_with_options, check_members, resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.errors import UserError
from megatron_sspo.reward.awaited import AsyncReward, AwaitedReward
from megatron_sspo.types import Prompt

# the run's own metrics of rewards: a part of such a name would replace reward/mean, the mean of the whole reward
_TAKEN = ("", "mean", "mean_sampled", "zero_variance_groups")


class Reward(Protocol):
    """Scores responses in named parts, such as `{"answer": 1.0, "format": 0.5}`; r_i is their sum.

    A reward that waits, as for a server, is an `AsyncReward`, whose `async def score` gets one response.

    `megatron_sspo/reward/<name>.py` defines `reward(**options)`, which builds a reward. A reward may also have
    `metrics() -> dict[str, float]`, the numbers since its last call; they are logged in the run's rows as
    `reward/<name>`. It may have `remarks(prompts)`, which returns lines about the rows of training; rank 0 logs them
    when a new run begins. The module may also define `check_prompt(prompt)`, which raises UserError for a row that
    cannot be judged; it is called with every prompt before the run starts, and with those of the reward's options that
    it has parameters for. A module's `check_values(**options)` raises UserError for options that `reward` would refuse;
    it is called before the run starts, maybe on another machine.
    """

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """Returns a dictionary for each pair of prompt and response, in order. It may be called from any thread.

        None in place of a dictionary says that the reward does not apply to the prompt's row: no parts, and r_i = 0.
        """
        ...

    def close(self) -> None:
        """Ends processes and closes files. It may be called more than once."""
        ...


def check_prompts(
    build: Callable[..., Reward], prompts: Iterable[Prompt], options: Mapping[str, Any] | None = None
) -> None:
    """Calls the `check_prompt` of the module of a reward's `build`, if it has one, with each prompt."""
    check = getattr(inspect.getmodule(build), "check_prompt", None)
    if check is not None:
        with user_code_errors("check_prompt"):
            known = list(inspect.signature(check).parameters.values())[1:]
            takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known)
            names = [parameter.name for parameter in known]
            read = {name: value for name, value in (options or {}).items() if takes_all or name in names}
            for prompt in prompts:
                check(prompt, **read)


def open_reward(name: str, options: Mapping[str, Any]) -> Reward:
    """Builds the reward of that name; one whose `score` is async is awaited."""
    what = f"the reward {name!r}"
    reward = call_with_options(resolve("reward", name, "reward"), options, what)
    if inspect.iscoroutinefunction(getattr(reward, "score", None)):
        check_members(reward, AsyncReward, what)
        return AwaitedReward(reward)
    check_members(reward, Reward, what)
    return reward


def remarks_of(reward: Reward, prompts: Sequence[Prompt]) -> Iterator[str]:
    """Yields the lines of a reward's `remarks`, if it has any."""
    remarks = getattr(reward, "remarks", None)
    if remarks is not None:
        with user_code_errors("the reward's remarks"):
            yield from map(str, remarks(prompts))


def checked_score(reward: Reward, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
    """Returns `reward.score`, checked and as floats: a NaN would silently make a whole group's advantages NaN.

    Raises UserError if the user's own reward raises, or does not return a dictionary of finite numbers for each
    response; the message names the prompt.
    """
    what = f"{type(getattr(reward, 'awaited', reward)).__name__}.score"
    with user_code_errors(what):
        scores = reward.score(list(prompts), list(responses))  # its own lists, which it may change
    if not isinstance(scores, (list, tuple)) or len(scores) != len(responses):
        raise UserError(
            f"{what} returned {describe_value(scores)} for {len(responses)} responses: it must return a list with a "
            "dict for each response, without async or yield"
        )
    with user_code_errors(what):  # a number's or a mapping's own methods run only here
        return [_checked_parts(parts, prompt, what) for prompt, parts in zip(prompts, scores, strict=True)]


def check_part_names(names: Iterable[str], who: str) -> None:
    """Raises UserError if the parts of a reward, which `who` gave, cannot be the names of metrics, reward/NAME."""
    for taken in (name for name in names if name in _TAKEN):
        raise UserError(
            f"{who} gave a part of the reward with the name {taken!r}, which cannot be that of its metric, "
            f"reward/{taken}: give the part another name"
        )


def _checked_parts(parts: Any, prompt: Prompt, what: str) -> dict[str, float]:
    if parts is None:
        return {}
    if isinstance(parts, Mapping):
        check_part_names(parts, what)
        found = {name: _as_float(value) for name, value in parts.items()}
        if all(abs(value) <= LARGEST for value in found.values()):  # larger ones overflow in the sums of metrics
            return found
    raise UserError(
        f"{what} gave {describe_value(parts)} for a response to prompt {prompt.id!r}: it must give a dict of finite "
        f'numbers by name, such as {{"answer": 1.0}}, none beyond ±{LARGEST}'
    )


def _as_float(value: Any) -> float:
    """Returns a number of Python, NumPy or torch as a float; NaN for any other value."""
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan
