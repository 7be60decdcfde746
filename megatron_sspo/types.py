"""The nouns of the training step: what passes from one folder to the next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A question, rendered and tokenized, with what its reward needs."""

    id: str  # unique and stable within its source: "gsm8k.jsonl:17"
    tokens: tuple[int, ...]  # the chat template's rendering, generation prompt included
    answer: str  # the gold answer
    demonstration: str = ""  # a worked response, for the warm start
    metadata: Mapping[str, Any] = field(default_factory=dict)  # whatever else the row carried


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A policy's answer to a prompt, in one turn or several, and what is learned about it on its way to the trainer.

    Log-probs of any kind are one for each of `tokens`, and 0 at those that an environment wrote.
    """

    tokens: tuple[int, ...]  # the response, with the end-of-sequence token if it was sampled; of several turns all
    rollout_log_probs: tuple[float, ...]  # under the distribution that a token was sampled from
    text: str  # the last turn decoded, without end-of-sequence and stop strings cut as the engine did; it is judged
    finish_reason: FinishReason
    policy_version: int  # the oldest weights that sampled some of it
    version_spans: tuple[tuple[int, int], ...] = ()  # (weights, tokens that they sampled), where more than one did
    reward_parts: Mapping[str, float] = field(default_factory=dict)  # {"answer": 1.0, "format": 0.5}
    advantage: float = 0.0  # Â_i
    old_log_probs: tuple[float, ...] | None = None  # the trainer's, at the last sync; None where ρ = 1 by construction
    reference_log_probs: tuple[float, ...] | None = None  # of the policy that a KL penalty is taken to
    routes: str | None = None  # the experts that prompt and response went to (`routes.py`), for routing replay
    # [first, beyond) of the tokens that an environment wrote: observations, and what the chat template puts around them
    observed: tuple[tuple[int, int], ...] = ()
    transcript: str = ""  # all turns and observations decoded, where there was more than one turn

    @property
    def num_response_tokens(self) -> int:
        """|y_i|: the tokens that the policy itself sampled."""
        return len(self.tokens) - sum(beyond - first for first, beyond in self.observed)

    @property
    def num_turns(self) -> int:
        """How often the policy spoke."""
        return 1 + len(self.observed)

    def response_mask(self) -> list[bool]:
        """Of each token, whether the policy sampled it."""
        mask = [True] * len(self.tokens)
        for first, beyond in self.observed:
            mask[first:beyond] = [False] * (beyond - first)
        return mask

    def staleness(self, policy_version: int) -> float:
        """How many updates older than `policy_version` its weights were, in the mean over the tokens it sampled."""
        spans = self.version_spans or ((self.policy_version, 1),)
        return sum((policy_version - version) * count for version, count in spans) / sum(count for _, count in spans)

    @property
    def reward(self) -> float:
        """r_i: the sum of its parts."""
        return sum(self.reward_parts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """The G responses to one prompt."""

    prompt: Prompt
    rollouts: Sequence[Rollout]
