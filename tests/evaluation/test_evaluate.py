"""Metrics of a set (pass@1, avg@k, pass@k) compared with counts by hand."""

import pytest

from megatron_sspo.evaluation.evaluate import AnswerStore, SetEvaluation
from megatron_sspo.rollout.engine import BatchedGeneration
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling
from tests.responses import response


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
        return BatchedGeneration(batch for batch in [list(enumerate(groups))])

    def rollout(self, id: str, index: int, sampling: Sampling) -> Rollout:
        if sampling.temperature == 0:
            text = {"a": "1", "b": "1!", "c": "0", "d": "0!"}[id]
        else:
            text = "1" if id == "a" or (id == "c" and index % 2) else "0"
        return response((1,) * len(text), text=text, finish_reason="length" if text == "0!" else "stop")


class Reward:
    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def score(self, prompts, responses):
        scores = [{"answer": float("1" in r), "format": float("!" in r), "style": 0.25} for r in responses]
        return [{part: score.get(part, 0.5) for part in self.parts} for score in scores]

    def close(self) -> None:
        pass


PROMPTS = [Prompt(id=id, tokens=(1,), answer="1") for id in "abcd"]
SAMPLING = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, max_tokens=9)


class Words:
    def decode(self, tokens) -> str:
        return f"{len(tokens)} tokens"


def no_sync() -> None:
    raise AssertionError("no engine has lost its weights")


def answer(engine: Script, reward: Reward, **options) -> tuple[dict[str, float], AnswerStore]:
    store = options.pop("store", None) or AnswerStore(Words())
    found = SetEvaluation(engine, reward, PROMPTS, SAMPLING, store=store, **options)  # type: ignore[arg-type]
    return found.compute_metrics(no_sync), store


def test_metrics_are_shares_of_the_prompts() -> None:
    engine = Script()
    metrics, store = answer(engine, Reward("answer", "format", "style"), samples=4)
    assert {name: value for name, value in metrics.items() if not name.endswith(("/low", "/high"))} == {
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
    assert metrics["pass@1/low"] < 0.5 < metrics["pass@1/high"]
    assert [answers.answers[0].text for answers in store.by_id("greedy").values()] == ["1", "1!", "0", "0!"]
    assert store.by_id("sampled")["c"].prompt == "1 tokens" and store.by_id("sampled")["c"].gold == "1"
    assert engine.calls == [(Sampling(temperature=0.0, top_p=1.0, max_tokens=9), 1), (SAMPLING, 4)]


@pytest.mark.parametrize(
    ("part", "samples", "numbers"),
    [("answer", 0, {"pass@1", "pass@1/low", "pass@1/high"}), ("style", 2, {"style"})],
)
def test_without_samples_or_a_part_for_the_answer_there_are_fewer_numbers(part, samples, numbers) -> None:
    engine = Script()
    metrics, _ = answer(engine, Reward(part), samples=samples)
    assert set(metrics) == numbers | {"reward", "response_tokens", "truncated"}
    assert len(engine.calls) == 1


def test_parts_that_have_the_names_of_metrics_keep_their_values() -> None:
    taken = ("reward", "truncated", "pass@1", "pass@1/low", "avg@8/high", "title")
    metrics, _ = answer(Script(), Reward("style", *taken))
    plain, _ = answer(Script(), Reward("style"))
    assert {name for name in metrics if name.startswith("reward/")} == {f"reward/{name}" for name in taken}
    assert {name: metrics[name] for name in metrics if not name.startswith("reward/")} == plain | {
        "reward": metrics["reward"]
    }


def test_answered_prompts_are_not_answered_again() -> None:
    whole, store = answer(Script(), Reward("answer"), samples=2)
    engine = Script()
    assert answer(engine, Reward("answer"), samples=2, store=store)[0] == whole
    assert engine.calls == []
    del store.by_id("greedy")["b"], store.by_id("sampled")["c"]
    assert answer(engine, Reward("answer"), samples=2, store=store)[0] == whole
    assert engine.asked == [["b"], ["c"]]


@pytest.mark.parametrize(("part", "asked"), [("answer", 2), ("style", 1)])
def test_all_answers_can_be_begun_before_they_are_waited_for(part, asked) -> None:
    engine, store = Script(), AnswerStore(Words())
    found = SetEvaluation(engine, Reward(part), PROMPTS, SAMPLING, store=store, samples=2)  # type: ignore[arg-type]
    found.begin()
    assert [size for _, size in engine.calls] == [1, 2]
    metrics = found.compute_metrics(no_sync)
    assert metrics == answer(Script(), Reward(part), samples=2)[0]
    assert len(engine.calls) == 2
    assert sum(bool(store.by_id(kind)) for kind in ("greedy", "sampled")) == asked
