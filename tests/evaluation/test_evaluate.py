"""Metrics of a set (pass@1, avg@k, pass@k) compared with counts by hand."""

import pytest

from megatron_sspo.evaluation.evaluate import Kept, evaluate
from megatron_sspo.rollout.engine import AtOnce, Sampling
from megatron_sspo.types import Prompt, Rollout, RolloutGroup


class Script:
    """An engine with fixed answers. Greedy: right for prompts a, b. Sampled: right for a, half of the time for c."""

    replicated = True

    def __init__(self) -> None:
        self.calls: list[tuple[Sampling, int]] = []
        self.asked: list[list[str]] = []

    def start(self, prompts, sampling, *, group_size, seed, environment):
        self.calls.append((sampling, group_size))
        self.asked.append([prompt.id for prompt in prompts])
        groups = [
            RolloutGroup(prompt=p, rollouts=[self.rollout(p.id, i, sampling) for i in range(group_size)])
            for p in prompts
        ]
        return AtOnce(lambda: groups)

    def rollout(self, id: str, index: int, sampling: Sampling) -> Rollout:
        if sampling.temperature == 0:
            text = {"a": "1", "b": "1!", "c": "0", "d": "0!"}[id]
        else:
            text = "1" if id == "a" or (id == "c" and index % 2) else "0"
        return Rollout(
            tokens=(1,) * len(text),
            rollout_log_probs=(0.0,) * len(text),
            text=text,
            finish_reason="length" if text == "0!" else "stop",
            policy_version=0,
        )


class Reward:
    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def score(self, prompts, responses):
        scores = [{"answer": float("1" in r), "format": float("!" in r), "style": 0.25} for r in responses]
        return [{part: score[part] for part in self.parts} for score in scores]

    def close(self) -> None:
        pass


PROMPTS = [Prompt(id=id, tokens=(1,), answer="1") for id in "abcd"]
SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_tokens=9)


class Words:
    def decode(self, tokens) -> str:
        return f"{len(tokens)} tokens"


def no_sync() -> None:
    raise AssertionError("no engine has lost its weights")


def answer(engine: Script, reward: Reward, **options) -> tuple[dict[str, float], Kept]:
    kept = options.pop("kept", None) or Kept(Words())
    return evaluate(engine, reward, PROMPTS, SAMPLING, sync=no_sync, kept=kept, **options), kept  # type: ignore[arg-type]


def test_the_numbers_are_shares_of_the_prompts() -> None:
    engine = Script()
    numbers, kept = answer(engine, Reward("answer", "format", "style"), samples=4)
    assert {name: value for name, value in numbers.items() if not name.endswith(("/low", "/high"))} == {
        "pass@1": 0.5,
        "avg@4": pytest.approx((4 + 0 + 2 + 0) / 16),
        "pass@2": pytest.approx((1 + 0 + 5 / 6 + 0) / 4),
        "pass@4": pytest.approx((1 + 0 + 1 + 0) / 4),
        "format_rate": 0.5,
        "style": 0.25,
        "reward": 0.5 + 0.5 + 0.25,
        "response_tokens": 1.5,
        "truncated": 0.25,
    }
    assert numbers["pass@1/low"] < 0.5 < numbers["pass@1/high"]
    assert [answers.answers[0].text for answers in kept.of("greedy").values()] == ["1", "1!", "0", "0!"]
    assert kept.of("sampled")["c"].prompt == "1 tokens" and kept.of("sampled")["c"].gold == "1"
    assert engine.calls == [(Sampling(temperature=0.0, top_p=1.0, max_tokens=9), 1), (SAMPLING, 4)]


def test_nothing_is_sampled_that_is_not_asked_for() -> None:
    engine = Script()
    numbers, _ = answer(engine, Reward("answer"))
    assert set(numbers) == {"pass@1", "pass@1/low", "pass@1/high", "reward", "response_tokens", "truncated"}
    assert len(engine.calls) == 1


def test_a_reward_without_an_answer_part_has_no_pass_rate() -> None:
    numbers, _ = answer(Script(), Reward("style"), samples=2)
    assert set(numbers) == {"style", "reward", "response_tokens", "truncated"}


def test_what_is_answered_is_not_asked_again() -> None:
    whole, kept = answer(Script(), Reward("answer"), samples=2)
    engine = Script()
    assert answer(engine, Reward("answer"), samples=2, kept=kept)[0] == whole
    assert engine.calls == []
    del kept.of("greedy")["b"], kept.of("sampled")["c"]
    assert answer(engine, Reward("answer"), samples=2, kept=kept)[0] == whole
    assert engine.asked == [["b"], ["c"]]
