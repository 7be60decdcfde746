"""Tests of the math reward on hand-written answers: right ones, wrong ones, and known disagreements."""

import json
from pathlib import Path

import pytest

from megatron_sspo.reward.math import reward
from megatron_sspo.types import Prompt

PAIRS = [json.loads(line) for line in (Path(__file__).parent / "answer_pairs.jsonl").read_text().splitlines()]

# (gold, response): right answers that count as wrong; the reason is in docs/rewards.md.
DISAGREEMENTS = {
    ("3", r"x=3,\ y=4"),
    ("5", r"5 \text{ (mod 7)}"),
    ("204", "<b>204</b>"),
}


@pytest.fixture(scope="module")
def verdicts():
    judge = reward(num_workers=2, deadline=5.0)
    prompts = [Prompt(id=str(number), tokens=(1,), answer=pair["gold"]) for number, pair in enumerate(PAIRS)]
    scores = judge.score(prompts, [respond(pair["response"]) for pair in PAIRS])
    judge.close()
    return [score["answer"] == 1.0 for score in scores]


def respond(text: str) -> str:
    """Returns a text inside of the template, unless it is a whole response already."""
    return text if "<answer>" in text or "</think>" in text else f"<think>hm</think> <answer>{text}</answer>"


def test_the_table_is_large_and_has_no_pair_twice() -> None:
    assert len(PAIRS) >= 300
    assert len({(pair["gold"], pair["response"]) for pair in PAIRS}) == len(PAIRS)
    assert 120 <= sum(pair["right"] for pair in PAIRS) <= len(PAIRS) - 120


def test_agreement(verdicts) -> None:
    wrong = [pair for pair, verdict in zip(PAIRS, verdicts, strict=True) if verdict != pair["right"]]
    assert {(pair["gold"], pair["response"]) for pair in wrong} == DISAGREEMENTS
    assert 1 - len(wrong) / len(PAIRS) >= 0.97


def test_hedged_and_unevaluated_answers_are_wrong(verdicts) -> None:
    kinds = ("hedge", "task", "base")
    paid = [pair for pair, verdict in zip(PAIRS, verdicts, strict=True) if verdict and pair["kind"] in kinds]
    assert paid == []


def test_the_docs_name_every_disagreement() -> None:
    text = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    for gold, response in DISAGREEMENTS:
        assert f"| `{gold}` | `{response[:28]}" in text, (gold, response)
