"""Several rewards in one run, by name and weight."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from megatron_sspo.config.kinds import Finite, MaybePlugin, Options
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import check_plugin, resolve
from megatron_sspo.config.user_code import metrics_of
from megatron_sspo.config.validate import HintMismatch, convert_to_hint
from megatron_sspo.errors import UserError
from megatron_sspo.reward.protocol import Reward, check_prompts, checked_score, open_reward, remarks_of
from megatron_sspo.types import Prompt

_EVALUATED = ("answer", "format")  # parts that evaluations read by these names


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of several rewards."""

    reward: MaybePlugin = ""  # a file of megatron_sspo/reward, or package.module:attribute; "": its name
    options: Options = field(default_factory=dict)  # its own
    weight: Finite = 1.0  # the factor of its parts
    where: Options = field(default_factory=dict)  # {field: pattern}: the rows that it scores, by metadata or "id"

    def applies_to(self, prompt: Prompt) -> bool:
        """Returns whether all fields of a prompt's row fit their patterns, in which * stands for any text."""
        row = {**prompt.metadata, "id": prompt.id}
        return all(name in row and fnmatchcase(str(row[name]), str(pattern)) for name, pattern in self.where.items())

    def part(self, name: str, part: str) -> str:
        """Returns the name that a part of this member has in the sum."""
        return part if part in _EVALUATED and self.weight == 1 else f"{name}/{part}"


def reward(**rewards: Mapping[str, Any]) -> "WeightedReward":
    """Builds the rewards.

    Args:
        rewards: the rewards by name, each a dict with fields of `Member`:
            {"math": {"weight": 1.0}, "style": {"reward": "style.py:reward", "weight": 0.2}}.
    """
    with ExitStack() as stack:
        opened = {}
        for name, member in members_of(rewards).items():
            opened[name] = (member, open_reward(member.reward, member.options))
            stack.callback(opened[name][1].close)
        return WeightedReward(opened, stack.pop_all())


def check_values(**rewards: Any) -> None:
    """Raises UserError for members of another form, and for their options."""
    for member in members_of(rewards).values():
        check_plugin("reward", member.reward, member.options)


def check_prompt(prompt: Prompt, **rewards: Any) -> None:
    """Raises UserError for a row that no member scores, or that one of them cannot judge."""
    members = [member for member in members_of(rewards).values() if member.applies_to(prompt)]
    if not members:
        raise UserError(
            f"prompt {prompt.id!r} fits the `where` of no reward of 'weighted': widen one, or remove the row"
        )
    for member in members:
        check_prompts(resolve("reward", member.reward, "reward"), [prompt], member.options)


def members_of(rewards: Mapping[str, Any]) -> dict[str, Member]:
    """Returns the members that options describe, by name; raises UserError for another description."""
    if not rewards:
        raise UserError("the reward 'weighted' has no rewards: name them in reward_options, as {'math': {}}")
    found = {}
    for name, value in rewards.items():
        try:
            member = convert_to_hint({"reward": name, **value}, Member)
        except (HintMismatch, TypeError):
            raise UserError(
                f"the reward 'weighted': {name} is {describe_value(value)}: it must be a dict with some of reward, a "
                "name; options, a dict; weight, a number; where, a dict"
            ) from None
        found[name] = member
    return found


class WeightedReward:
    """The parts of several rewards, times their weights; r_i is the sum of all.

    A part is NAME/PART, where NAME is the reward's. Of a reward with the weight 1, the parts "answer" and "format" keep
    their names, by which evaluations know right answers.
    """

    def __init__(self, members: Mapping[str, tuple[Member, Reward]], stack: ExitStack) -> None:
        self._members, self._stack = members, stack

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """Returns a dictionary for each pair of prompt and response, in order."""
        found: list[dict[str, float]] = [{} for _ in prompts]
        for name, (member, reward) in self._members.items():
            pairs = zip(found, prompts, responses, strict=True)
            chosen = [each for each in pairs if member.applies_to(each[1])]
            if not chosen:
                continue
            scores = checked_score(reward, [prompt for _, prompt, _ in chosen], [response for *_, response in chosen])
            for (parts, prompt, _), own in zip(chosen, scores, strict=True):
                named = {member.part(name, part): member.weight * value for part, value in own.items()}
                if twice := named.keys() & parts.keys():
                    raise UserError(
                        f"two rewards of 'weighted' give prompt {prompt.id!r} the part {min(twice)!r}: let `where` "
                        "leave one of them out for this row, or give one of them another weight than 1"
                    )
                parts.update(named)
        return found

    def remarks(self, prompts: Sequence[Prompt]) -> Iterator[str]:
        """Yields the remarks of each reward about its rows."""
        for member, reward in self._members.values():
            yield from remarks_of(reward, [prompt for prompt in prompts if member.applies_to(prompt)])

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of each reward as NAME/metric."""
        found: dict[str, float] = {}
        for name, (_, reward) in self._members.items():
            found |= metrics_of(reward, f"the reward {name!r}", prefix=f"{name}/")
        return found

    def close(self) -> None:
        """Closes the rewards."""
        self._stack.close()
