"""Explains a reward from which nothing is learned, by the rollouts of the first cycles."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from megatron_sspo.config.naming import shorten
from megatron_sspo.objective.rounding import are_equal
from megatron_sspo.run import Run
from megatron_sspo.types import Batch, Rollout, RolloutGroup, rollouts_of

_FIRST_CYCLES = 2
_LONGEST = 600  # characters of an example, half of them at each end


class ConstantReward:
    """Looks at the batches of a run's first cycles, of `num_updates` updates, unless a response has an advantage."""

    def __init__(self, num_updates: int, max_tokens: int, tokenizer: Any) -> None:
        self._num_updates, self._max_tokens, self._tokenizer = num_updates, max_tokens, tokenizer
        self._is_constant = True
        self._counts: Counter[str] = Counter()
        self._rewards: list[float] = []
        self._formats: list[float] = []
        self._failed: list[float] = []  # shares of the agent's episodes that failed or were late
        self._example: tuple[RolloutGroup, Rollout] | None = None

    @classmethod
    def of_run(cls, run: Run, tokenizer: Any) -> Self:
        """Returns what looks at a run's first cycles."""
        num_updates = min(_FIRST_CYCLES * run.updates_per_sync, run.num_updates)
        return cls(num_updates, run.rollouts.sampling.max_tokens, tokenizer)

    def look(self, row: Mapping[str, float], batch: Batch) -> str | None:
        """Returns a warning after the last of the first updates, if no response has had an advantage."""
        self._is_constant &= row["update"] <= self._num_updates and not any(map(_has_advantage, rollouts_of(batch)))
        if not self._is_constant:
            return None
        self._add(row, batch)
        return self._warning() if row["update"] == self._num_updates else None

    def _add(self, row: Mapping[str, float], batch: Batch) -> None:
        if "agent/failed" in row:
            self._failed.append(row["agent/failed"] + row["agent/late"])
        for group in batch:
            self._counts["groups"] += 1
            self._counts["groups of one text"] += len({rollout.text for rollout in group.rollouts}) == 1
        for rollout in rollouts_of(batch):
            self._counts["responses"] += 1
            self._counts["empty"] += not rollout.text.strip()
            self._rewards.append(rollout.reward)
            self._formats += [rollout.reward_parts["format"]] if "format" in rollout.reward_parts else []
            self._counts["truncated"] += rollout.finish_reason == "length"
        if self._example is None or not len(self._example[1].tokens):
            self._example = (batch[0], batch[0].rollouts[0])

    def _warning(self) -> str:
        assert self._example is not None
        group, rollout = self._example
        text = str(self._tokenizer.decode(rollout.tokens.tolist(), skip_special_tokens=False))
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        return (
            f"no response of the first {self._counts['responses']:,} has an advantage, so nothing is learned: "
            f"{self._cause()}. An example, as the model wrote it for prompt {group.prompt.id} (gold answer "
            f"{shorten(group.prompt.answer)!r}, reward {rollout.reward:g}): {text!r}"
        )

    def _cause(self) -> str:
        """Returns the likeliest cause with its remedy."""
        total = self._counts["responses"]
        if self._failed and min(self._failed) >= 1:
            return (
                "every episode failed or was late, and has rollouts.endpoint.failure_reward; the first exceptions are "
                "above, and agent/failed and agent/late are their shares"
            )
        if self._counts["empty"] == total:
            return "every response is empty: the model ends at once, so check prompts.template and its end tokens"
        if self._counts["truncated"] == total:
            return (
                f"every response was cut at rollouts.sampling.max_tokens={self._max_tokens} tokens: raise it, or give "
                "an end, such as a special token in the example below, to rollouts.sampling.stop"
            )
        if self._formats and max(self._formats) <= 0:
            return (
                "no response begins or ends with the tags that the reward reads: ask for them in prompts.system, or "
                "learn them in a warm start"
            )
        if not are_equal(self._rewards):
            if self._counts["groups of one text"] == self._counts["groups"]:
                return "all responses to a prompt are the same text: raise rollouts.sampling.temperature"
            return "the responses to each prompt have equal rewards: the reward may depend on the prompt alone"
        if abs(self._rewards[0]) > 0:
            return (
                f"every response has the reward {self._rewards[0]:g}: the reward does not tell them apart, or the "
                "questions are too easy"
            )
        return (
            "every response has the reward 0: the questions are too hard, or the reward does not read the answers as "
            "they are written"
        )


def _has_advantage(rollout: Rollout) -> bool:
    if rollout.teacher_log_probs is not None:
        return True
    return bool(rollout.advantage) or (rollout.token_advantages is not None and bool(rollout.token_advantages.any()))
