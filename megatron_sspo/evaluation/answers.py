"""The record of the answers to a set: readable, and sufficient to compute every metric."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from megatron_sspo.types import RolloutGroup, sum_of_parts
from sspo_lab.estimate import Estimate, greedy_pass, sampled_avg, sampled_pass

# names of metrics of a set that are no pass rates, and of the set's title, which results.json has beside them
_OWN = ("format_rate", "reward", "response_tokens", "turns", "truncated", "title")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One response with its reward, or one episode of an agent with all its branches."""

    text: str  # with several turns: all turns and the observations between them
    tokens: int  # number of tokens that the policy sampled
    turns: int
    finish_reason: str
    reward: Mapping[str, float]  # parts of the reward

    @property
    def is_correct(self) -> bool:
        """Returns whether the reward's part "answer" is 1 or more, independently of its other parts."""
        return self.reward.get("answer", 0.0) >= 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The responses to one prompt."""

    id: str
    prompt: str
    gold: str
    answers: tuple[Answer, ...]

    @classmethod
    def from_group(cls, group: RolloutGroup, tokenizer: Any) -> Self:
        """Builds the record of a group; the prompt is decoded to text."""
        return cls(
            id=group.prompt.id,
            prompt=str(tokenizer.decode(group.prompt.tokens)),
            gold=group.prompt.answer,
            answers=tuple(
                Answer(
                    text="\n\n".join(r.transcript or r.text for r in rollouts),
                    tokens=sum(r.num_response_tokens for r in rollouts),
                    turns=sum(r.num_turns for r in rollouts),
                    finish_reason=rollouts[-1].finish_reason,
                    reward=dict(rollouts[0].reward_parts),
                )
                for rollouts in group.episodes
            ),
        )

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Reverses `to_row`; raises LookupError or TypeError for a row of another form."""
        return cls(**{**row, "answers": tuple(Answer(**answer) for answer in row["answers"])})

    def to_row(self) -> dict[str, Any]:
        """Returns the record as JSON values."""
        return asdict(self)


def compute_metrics(greedy: Sequence[Answers], sampled: Sequence[Answers]) -> dict[str, float]:
    """Computes the metrics of a set, by name.

    Greedy answers give `pass@1`; k sampled answers give `avg@k` and `pass@j` for j = 2, 4, 8, ... and k. Each of these
    also has `/low` and `/high`, the ends of its 95 % interval over prompts (`estimate`). Greedy answers further give
    `format_rate`, the mean `reward`, the means of the reward's other parts over the answers that have them,
    `response_tokens`, `turns` if any response has several, and the share that was `truncated`. A reward without the
    part "answer" has no pass@1, avg@k or pass@j; if only some answers have it, the others are not right.
    A part that is named `title`, as one of these metrics or with an @ is found as `reward/NAME`.
    """
    first = [answers.answers[0] for answers in greedy]
    parts = sorted({name for answer in first for name in answer.reward})
    found: dict[str, float] = {}
    if "answer" in parts:
        found |= _with_interval("pass@1", greedy_pass([answer.is_correct for answer in first]))
        if sampled:
            found |= _sampled_metrics(sampled)
    for part in parts:
        values = [answer.reward[part] for answer in first if part in answer.reward]
        if part == "format":
            found["format_rate"] = _mean([value == 1.0 for value in values])
        elif part != "answer":
            found[f"reward/{part}" if part in _OWN or "@" in part else part] = _mean(values)
    found["reward"] = _mean([sum_of_parts(answer.reward) for answer in first])
    found["response_tokens"] = _mean([answer.tokens for answer in first])
    if any(answer.turns > 1 for answer in first):
        found["turns"] = _mean([answer.turns for answer in first])
    found["truncated"] = _mean([answer.finish_reason == "length" for answer in first])
    return found


def _sampled_metrics(sampled: Sequence[Answers]) -> dict[str, float]:
    k = len(sampled[0].answers)
    correct = [sum(answer.is_correct for answer in answers.answers) for answers in sampled]
    found = _with_interval(f"avg@{k}", sampled_avg(correct, k))
    for j in sorted({k, *(2**power for power in range(1, k.bit_length()))} - {1}):
        found |= _with_interval(f"pass@{j}", sampled_pass(correct, k, j))
    return found


def _with_interval(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.mean, f"{name}/low": estimate.low, f"{name}/high": estimate.high}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Returns the metrics of a set on one line, without the ends of their intervals."""
    return "  ".join(f"{name} {value:.3f}" for name, value in metrics.items() if not name.endswith(("/low", "/high")))


def before_and_after(first: Mapping[str, float], last: Mapping[str, float], name: str) -> list[tuple[str, str, str]]:
    """Returns rows for one set: each metric in the first and in the last evaluation of a run, with its interval."""

    def cell(row: Mapping[str, float], key: str) -> str:
        if key not in row:
            return "-"
        interval = f" ({row[f'{key}/low']:.3f}-{row[f'{key}/high']:.3f})" if f"{key}/low" in row else ""
        return f"{row[key]:.3f}{interval}"

    keys = [key for key in last if key.startswith(f"{name}/") and not key.endswith(("/low", "/high"))]
    return [(key.removeprefix(f"{name}/"), cell(first, key), cell(last, key)) for key in keys]
