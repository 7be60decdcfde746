"""The data types of the training step that several folders share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from megatron_sspo.config.kinds import Count, NotNegative, Probability, StopString

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A question, rendered and tokenized, with the fields that its reward needs."""

    id: str  # unique and stable within its source: "gsm8k.jsonl:17"
    tokens: tuple[int, ...]  # as the chat template renders it, generation prompt included
    answer: str  # the gold answer
    demonstration: str = ""  # a worked response, for the warm start
    metadata: Mapping[str, Any] = field(default_factory=dict)  # the other fields of the row


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A policy's response to a prompt, in one or several turns, with its reward, advantage and log-probs.

    Log-probs of any kind have one value for each of `tokens`; the value is 0 for tokens that an environment wrote.
    """

    tokens: tuple[int, ...]  # the response, all turns, with the end-of-sequence token if it was sampled
    rollout_log_probs: tuple[float, ...]  # under the distribution that each token was sampled from
    text: str  # the last turn decoded, for the reward: without end-of-sequence, stop strings cut as the engine did
    finish_reason: FinishReason
    policy_version: int  # the oldest weights that sampled some of its tokens
    version_spans: tuple[tuple[int, int], ...] = ()  # (version, tokens sampled), if several versions sampled
    reward_parts: Mapping[str, float] = field(default_factory=dict)  # {"answer": 1.0, "format": 0.5}
    advantage: float = 0.0  # Â_i
    old_log_probs: tuple[float, ...] | None = None  # the trainer's, at the last sync; None where ρ = 1 by construction
    reference_log_probs: tuple[float, ...] | None = None  # under the reference policy of the KL penalty
    routes: str | None = None  # the experts of the prompt's and response's tokens (`routes.py`), for routing replay
    # [first, beyond) of the tokens that an environment wrote: observations, and the chat template's text around them
    observed: tuple[tuple[int, int], ...] = ()
    transcript: str = ""  # all turns and observations decoded, if there was more than one turn

    @property
    def num_response_tokens(self) -> int:
        """|y_i|: the number of tokens that the policy itself sampled."""
        return len(self.tokens) - sum(beyond - first for first, beyond in self.observed)

    @property
    def num_turns(self) -> int:
        """The number of turns of the policy."""
        return 1 + len(self.observed)

    def response_mask(self) -> list[bool]:
        """Returns a mask of `tokens` that is True for tokens that the policy sampled."""
        mask = [True] * len(self.tokens)
        for first, beyond in self.observed:
            mask[first:beyond] = [False] * (beyond - first)
        return mask

    def staleness(self, policy_version: int) -> float:
        """Returns by how many updates its weights were older than `policy_version`, as a mean over sampled tokens."""
        spans = self.version_spans or ((self.policy_version, 1),)
        return sum((policy_version - version) * count for version, count in spans) / sum(count for _, count in spans)

    @property
    def reward(self) -> float:
        """r_i: the sum of the reward's parts."""
        return sum(self.reward_parts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """The G responses to one prompt."""

    prompt: Prompt
    rollouts: Sequence[Rollout]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling parameters. `temperature` 0 is greedy decoding."""

    max_tokens: Count = 512  # most tokens of a response: all turns together, with the observations between them
    temperature: NotNegative = 1.0  # of the softmax; log-probs are those of this temperature
    top_p: Probability = 1.0  # tokens are drawn from the likeliest that have this probability together
    stop: tuple[StopString, ...] = ()  # strings that end a response; the response keeps the string
