"""Tests of hand-written answers: right ones, wrong ones, and known disagreements."""

import json
from pathlib import Path

import pytest

from sspo_answers import is_equivalent

PAIRS = [json.loads(line) for line in (Path(__file__).parent / "answer_pairs.jsonl").read_text().splitlines()]

# (gold, response): right answers that count as wrong; the reasons are in README.md.
DISAGREEMENTS = {
    ("3", r"x=3,\ y=4"),
    ("5", r"5 \text{ (mod 7)}"),
    ("204", "<b>204</b>"),
    ("5", "five"),
    ("12", "a dozen"),
    ("no solution", "There is no solution"),
    ("12:30", "12:30 p.m."),
    ("20", r"20\% of the class"),
}


@pytest.fixture(scope="module")
def verdicts() -> list[bool]:
    return [is_equivalent((pair["gold"], pair["response"])) for pair in PAIRS]


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
