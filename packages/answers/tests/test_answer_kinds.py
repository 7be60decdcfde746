"""Tests of answers by kind: names, letters, text, precision, ratios, chains, decimal commas, attacks."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from sspo_answers.answer import read_decimal_commas
from sspo_answers.compare import compare
from sspo_answers.verify import is_equivalent

ROWS = [json.loads(line) for line in (Path(__file__).parent / "answer_kinds.jsonl").read_text("utf-8").splitlines()]
KINDS = sorted({row["kind"] for row in ROWS})


def judge(row: dict) -> bool:
    pair = row["gold"], row["answer"]
    if row.get("decimal_comma"):
        pair = read_decimal_commas(pair[0]), read_decimal_commas(pair[1])
    return is_equivalent(pair)


@pytest.fixture(scope="module")
def verdicts() -> list[bool]:
    return [judge(row) for row in ROWS]


def test_each_kind_has_right_and_wrong_answers() -> None:
    counts = Counter((row["kind"], row["right"]) for row in ROWS)
    assert set(counts) == {(kind, right) for kind in KINDS for right in (True, False)}
    assert len(ROWS) > 2000


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts(verdicts, kind: str) -> None:
    wrong = [
        row for row, verdict in zip(ROWS, verdicts, strict=True) if row["kind"] == kind and verdict != row["right"]
    ]
    assert [(row["gold"], row["answer"]) for row in wrong] == []


def test_what_the_process_decides_alone_is_decided_alike(verdicts) -> None:
    for row, verdict in zip(ROWS, verdicts, strict=True):
        if not row.get("decimal_comma"):
            assert compare(row["gold"], row["answer"]) in (verdict, None), row


REPEATED = [
    "a ",
    "x=",
    "(",
    "\\text{",
    "1,",
    "and ",
    "&",
    ":",
    "\\approx ",
    "1 ",
    "\\frac1",
    "^",
    "x_{",
    "½",
    "A)",
    "x=1\n",
    "\\boxed{1},",
    "5\\mathrm{~m}",
    "不",
    "\\boxed{",
    "m/",
    "⌊",
    "x=1 or ",
    "x \\ne 1,",
]


@pytest.mark.parametrize("piece", REPEATED)
@pytest.mark.parametrize("gold", ["5", "(1,2)", "x^2+1", "AB=5"])
def test_a_long_answer_takes_a_bounded_time_without_a_deadline(piece: str, gold: str) -> None:
    started = time.process_time()
    for answer in (piece * 2000, f"5 {piece * 2000}", f"x = 5{piece * 2000}"):
        compare(gold, answer[:2000])
        compare(answer[:2000], gold)
    assert time.process_time() - started < 3
