"""The data types of the training step that several folders share."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import numpy as np

from megatron_sspo.arrays.convert import freeze, log_prob_array, number_array, route_array, token_array
from megatron_sspo.arrays.equality import EqualByArrays
from megatron_sspo.config.kinds import (
    Amount,
    AsTuple,
    Count,
    Finite,
    Line,
    NotNegative,
    Positive,
    Probability,
    Share,
    StopString,
)
from megatron_sspo.errors import UserError
from megatron_sspo.objective.rounding import ROUNDING, are_equal

FinishReason = Literal["stop", "length"]
TOKEN_VALUES = (
    *("rollout_log_probs", "old_log_probs", "reference_log_probs", "teacher_log_probs"),
    *("old_entropy", "token_advantages"),
)
"""The fields of `Rollout` with one number for each token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A question, rendered and tokenized, with the fields that its reward needs."""

    id: str  # unique and stable within its source: "gsm8k.jsonl:17"
    tokens: tuple[int, ...]  # as the chat template renders it, generation prompt included
    answer: str  # the gold answer
    demonstration: str = ""  # a worked response, for the warm start
    messages: tuple[Mapping[str, Any], ...] = ()  # the chat that `tokens` renders, for agents
    tools: tuple[Mapping[str, Any], ...] = ()  # the tools that `tokens` describes, for agents
    prefill: str = ""  # the thoughts that `tokens` opens at its end, "<think>\n", which a response continues
    metadata: Mapping[str, Any] = field(default_factory=dict)  # the other fields of the row
    draw: int = 0  # the number of earlier groups of the same generation that have this prompt


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rollout(EqualByArrays):
    """A policy's response to a prompt, in one or several turns, with its reward, advantage and log-probs.

    Tokens, values of tokens and routes are read-only NumPy arrays of one dimension. The constructor also takes lists,
    tuples and arrays of other types, and converts them. Log-probs of any kind, entropies and advantages of tokens have
    one value for each of `tokens`; the value is 0 for tokens that an environment wrote.

    Raises:
        UserError: the constructor was given tokens, values or routes of another kind, or not one value a token.
    """

    tokens: np.ndarray  # [n] int32: the response, all turns, with the end-of-sequence token if it was sampled
    rollout_log_probs: np.ndarray  # [n] float32: under the distribution that each token was sampled from
    text: str  # the last turn decoded, for the reward: without end and padding tokens, with stop strings
    finish_reason: FinishReason
    policy_version: int  # the version of the oldest weights that sampled some of the tokens
    version_spans: tuple[tuple[int, int], ...] = ()  # (version, tokens sampled), if several versions sampled
    reward_parts: Mapping[str, float] = field(default_factory=dict)  # {"answer": 1.0, "format": 0.5}
    advantage: float = 0.0  # Â_i; the mean of token_advantages if there are any
    token_advantages: np.ndarray | None = None  # [n] float32: Â_it, for advantages per token
    old_log_probs: np.ndarray | None = None  # [n] float32: the trainer's, at the last sync; None where ρ = 1
    old_entropy: np.ndarray | None = None  # [n] float32: of π_old, where the objective needs it and π_old is not π_θ
    reference_log_probs: np.ndarray | None = None  # [n] float32: under the reference policy
    teacher_log_probs: np.ndarray | None = None  # [n] float32: under the teacher, if the run has one
    # [n · k] int32 and float32: the teacher's k likeliest tokens at each token, and their log-probs, if the loss needs
    # them; any k tokens of log-prob 0 for tokens that an environment wrote
    teacher_top_tokens: np.ndarray | None = None
    teacher_top_log_probs: np.ndarray | None = None
    # [tokens · layers · topk] uint8, or uint16 for more than 256 experts: the experts of the prompt's and response's
    # tokens (`batching/routes.py`), for routing replay
    routes: np.ndarray | None = None
    # [first, beyond) of the tokens that an environment wrote: observations, and the chat template's text around them
    observed: tuple[tuple[int, int], ...] = ()
    # rollouts of a group whose prompt took different routes have different numbers, and cannot share the prompt in a
    # row; `Policy.scatter` sets the numbers
    prompt_variant: int = 0
    transcript: str = ""  # all turns and observations decoded, if there was more than one turn
    branches: int = 1  # number of rollouts of its episode, which are next to each other: see `RolloutGroup.episodes`
    # whether another process has the contents, and this one has only stand-ins for the arrays, which take no memory:
    # arrays of the right lengths, with tokens of −1 and log-probs of NaN; the texts are empty
    is_outline: bool = False

    def __post_init__(self) -> None:
        converters = {
            "tokens": token_array,
            **{name: log_prob_array if name.endswith("log_probs") else number_array for name in TOKEN_VALUES},
            "teacher_top_tokens": token_array,
            "teacher_top_log_probs": log_prob_array,
            "routes": route_array,
        }
        for name, convert in converters.items():
            if (given := getattr(self, name)) is None:
                continue
            try:
                found = convert(given)
            except ValueError as error:
                raise UserError(f"Rollout.{name} has wrong {error}") from error
            if name in TOKEN_VALUES and len(found) != len(self.tokens):
                raise UserError(
                    f"Rollout.{name} has {len(found)} values for {len(self.tokens)} tokens: there must be one for each "
                    "token"
                )
            object.__setattr__(self, name, found)

    def outline(self, **lengths: int) -> "Rollout":
        """Returns the rollout without its contents: for processes that count it and do not learn from it.

        Args:
            lengths: the lengths of arrays that the rollout does not have yet, by field.
        """
        lengths = self._lengths() | lengths
        stand_ins = {name: _stand_in(name, length) for name, length in lengths.items()}
        return replace(self, **stand_ins, text="", transcript="", is_outline=True)

    def _lengths(self) -> dict[str, int]:
        return {name: len(array) for name in _STAND_INS if (array := getattr(self, name)) is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments of the constructor, because arrays are writeable again once they are unpickled."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _unpickle, (values | self._lengths() if self.is_outline else values,)

    @property
    def num_response_tokens(self) -> int:
        """|y_i|: the number of tokens that the policy itself sampled."""
        return len(self.tokens) - sum(beyond - first for first, beyond in self.observed)

    @property
    def num_turns(self) -> int:
        """The number of turns of the policy."""
        return len(self.observed) + (not self.observed or self.observed[0][0] > 0)

    def response_mask(self) -> np.ndarray:
        """Returns a mask [n] of `tokens` that is True for tokens that the policy sampled."""
        mask = np.ones(len(self.tokens), dtype=np.bool_)
        for first, beyond in self.observed:
            mask[first:beyond] = False
        return mask

    def staleness(self, policy_version: int) -> float:
        """Returns how many updates behind `policy_version` the sampling weights were: the mean over sampled tokens."""
        spans = self.version_spans or ((self.policy_version, 1),)
        return sum((policy_version - version) * count for version, count in spans) / sum(count for _, count in spans)

    @property
    def reward(self) -> float:
        """r_i: the sum of the reward's parts."""
        return sum_of_parts(self.reward_parts)


def sum_of_parts(parts: Mapping[str, float]) -> float:
    """Returns the sum of a reward's parts, the same in every order; 0 if parts cancel out up to rounding errors."""
    try:
        total = math.fsum(parts.values())
        return 0.0 if abs(total) <= ROUNDING * math.fsum(map(abs, parts.values())) else total
    except (OverflowError, ValueError):  # beyond a float, or infinities of both signs
        return sum(parts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """The G responses to one prompt, or the G episodes of an agent."""

    prompt: Prompt
    rollouts: Sequence[Rollout]

    @property
    def episodes(self) -> list[Sequence[Rollout]]:
        """The rollouts by their episodes; without an agent, each rollout is an episode of its own."""
        found: list[Sequence[Rollout]] = []
        start = 0
        while start < len(self.rollouts):
            found.append(self.rollouts[start : start + self.rollouts[start].branches])
            start += self.rollouts[start].branches
        return found

    @property
    def has_equal_rewards(self) -> bool:
        """True if all rewards are equal: advantages relative to the group are then 0, and it gives no gradient."""
        return are_equal(rollout.reward for rollout in self.rollouts)


Batch = Sequence[RolloutGroup]
"""The groups of one optimizer step."""


def rollouts_of(groups: Iterable[RolloutGroup]) -> list[Rollout]:
    """Returns the rollouts of all groups, in order."""
    return [rollout for group in groups for rollout in group.rollouts]


def join_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns spans (policy version, number of tokens) with neighbours of the same version joined."""
    found: list[tuple[int, int]] = []
    for version, count in spans:
        if found and found[-1][0] == version:
            count += found.pop()[1]
        found.append((version, count))
    return found


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling parameters. `temperature` 0 is greedy decoding."""

    # the largest number of tokens of a response: of all turns and the observations between them
    max_tokens: Count = 512
    temperature: NotNegative = 1.0  # of the softmax; log-probs are those of this temperature
    top_p: Probability = 1.0  # tokens are drawn from the likeliest that have this probability together
    top_k: Amount = 0  # tokens are drawn from so many likeliest ones; 0: from all
    min_p: Share = 0.0  # tokens are drawn from those with at least this share of the likeliest one's probability
    stop: Annotated[tuple[StopString, ...], AsTuple] = ()  # strings that end a response; the response keeps the string

    @property
    def cut_off(self) -> str:
        """The settings that leave tokens out of the distribution: "top_p is 0.9 and top_k is 20"; "" without any."""
        whole = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
        return " and ".join(f"{name} is {value}" for name in whole if (value := getattr(self, name)) != whole[name])


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The endpoint that answers an agent, and the limits of an episode.

    A conversation has at most `prompts.max_tokens` + `sampling.max_tokens` tokens.
    """

    address: Line = "127.0.0.1"  # the address that the endpoint listens on
    max_episodes: Count = 64  # the largest number of episodes in progress on each process that generates
    max_turns: Count = 64  # the largest number of requests of an episode that are answered
    max_branches: Count = 8  # the largest number of rollouts that an episode may become
    max_concurrent: Count = 8  # the largest number of requests in progress of an episode
    seconds: Positive = 1800.0  # the time after which an episode is cancelled; waiting for the policy counts
    # what happens to requests that prescribe the form of their answer: refused, or answered and not learned from
    forced_turns: Literal["refuse", "observe"] = "refuse"
    failure_reward: Finite = 0.0  # of an episode that is cancelled, or whose agent raises


_STAND_INS = {
    **dict.fromkeys(("tokens", "teacher_top_tokens"), np.int32(-1)),
    **dict.fromkeys((*TOKEN_VALUES, "teacher_top_log_probs"), np.float32(np.nan)),
    "routes": np.uint8(255),
}


def _stand_in(name: str, length: int) -> np.ndarray:
    """Returns a read-only array that repeats one number in memory."""
    return np.broadcast_to(_STAND_INS[name], length)


def _unpickle(values: dict[str, Any]) -> Rollout:
    for name in _STAND_INS:
        if isinstance(value := values[name], np.ndarray):
            freeze(value)
        elif value is not None:
            values[name] = _stand_in(name, value)
    return Rollout(**values)
