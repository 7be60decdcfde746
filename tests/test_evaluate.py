"""pass@1 and avg@k, counted by hand."""

import pytest

from megatron_sspo.evaluate import evaluate
from megatron_sspo.rollout.engine import AtOnce, Sampling
from megatron_sspo.types import Prompt, Rollout, RolloutGroup


class Script:
    """Greedy: "1" to prompts a and b. Sampled: right for a, wrong for b, every second time right for c."""

    replicated = True

    def __init__(self) -> None:
        self.calls: list[tuple[Sampling, int]] = []

    def start(self, prompts, sampling, *, group_size, seed, environment):
        self.calls.append((sampling, group_size))
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
            finish_reason="stop",
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


def no_sync() -> None:
    raise AssertionError("no engine has lost its weights")


def test_the_numbers_are_shares_of_the_prompts() -> None:
    engine = Script()
    numbers, responses = evaluate(
        engine, Reward("answer", "format", "style"), PROMPTS, SAMPLING, sync=no_sync, samples=4
    )  # type: ignore[arg-type]
    assert numbers == {
        "pass@1": 0.5,
        "format_rate": 0.5,
        "style": 0.25,
        "avg@4": pytest.approx((4 + 0 + 2 + 0) / 16),
        "reward": 0.5 + 0.5 + 0.25,
        "response_tokens": 1.5,
    }
    assert [group.rollouts[0].text for group in responses] == ["1", "1!", "0", "0!"]
    assert engine.calls == [(Sampling(temperature=0.0, top_p=1.0, max_tokens=9), 1), (SAMPLING, 4)]


def test_nothing_is_sampled_that_is_not_asked_for() -> None:
    engine = Script()
    numbers, _ = evaluate(engine, Reward("answer"), PROMPTS, SAMPLING, sync=no_sync)  # type: ignore[arg-type]
    assert set(numbers) == {"pass@1", "reward", "response_tokens"}
    assert len(engine.calls) == 1


def test_a_reward_without_an_answer_part_has_no_pass_rate() -> None:
    numbers, _ = evaluate(Script(), Reward("style"), PROMPTS, SAMPLING, sync=no_sync, samples=2)  # type: ignore[arg-type]
    assert set(numbers) == {"style", "reward", "response_tokens"}
