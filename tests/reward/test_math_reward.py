import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.reward.math import reward
from megatron_sspo.reward.protocol import Reward, checked_score, open_reward
from megatron_sspo.types import Prompt
from packages.answers.tests import pool_jobs
from sspo_answers import verify
from sspo_answers.compare import compare
from sspo_answers.evaluate import is_same_formula
from sspo_answers.pool import DeadlinePool


def prompt(answer: str, id: str = "x.jsonl:1") -> Prompt:
    return Prompt(id=id, tokens=(1,), answer=answer)


def respond(answer: str) -> str:
    return f"<think>hm</think> <answer>{answer}</answer>"


@pytest.fixture(scope="module")
def judge():
    built = reward(num_workers=2, deadline=30.0)
    yield built
    built.close()


# packages/answers/tests has the answers that are compared
RIGHT = [("5", " 5.0\n"), ("1/2", "0.5"), ("10", r"10\text{ cm}"), (r"2\sqrt{3}", r"\sqrt{12}"), ("{1,2}", "{2,1}")]
WRONG = [
    ("5", "6"),
    ("5", ""),
    ("5", "5 or 6"),
    ("x^2+1", "x^2-1"),
    ("5", "\\frac{"),
    ("5", "__import__('os').abort()"),
]


@pytest.mark.parametrize(("gold", "answer", "expected"), [(*p, 1.0) for p in RIGHT] + [(*p, 0.0) for p in WRONG])
def test_answer(judge, gold: str, answer: str, expected: float) -> None:
    assert judge.score([prompt(gold)], [respond(answer)]) == [{"answer": expected, "format": 1.0}]


@pytest.mark.parametrize(
    ("prefill", "response", "form"),
    [
        ("<think>\n", "I add.\n</think> <answer>7</answer>", 1.0),
        ("<think>\n", "<think>I add.</think> <answer>7</answer>", 0.5),
        ("<think>\n\n</think>\n\n", "<answer>7</answer>", 1.0),
        ("", "I add.\n</think> <answer>7</answer>", 0.25),
    ],
)
def test_the_format_is_that_of_the_turn_which_the_prompt_may_have_begun(judge, prefill, response, form) -> None:
    asked = replace(prompt("7"), prefill=prefill)
    assert judge.score([asked], [response]) == [{"answer": 1.0, "format": form}]


def test_decimal_commas_are_an_option() -> None:
    prompts = [Prompt(id=str(number), tokens=(1,), answer=gold) for number, gold in enumerate(("3,14", "1.234,5"))]
    responses = [f"<think>hm</think> <answer>{answer}</answer>" for answer in ("3.14", "1234,5")]
    for option, expected in ((True, [1.0, 1.0]), (False, [0.0, 0.0])):
        built = reward(num_workers=1, decimal_comma=option)
        assert [score["answer"] for score in built.score(prompts, responses)] == expected
        built.close()


def test_a_batch_keeps_its_order_with_repeats_and_missing_answers(judge) -> None:
    gold = [prompt(r"\frac12"), prompt("7"), prompt("7"), prompt(r"\frac12"), prompt("7")]
    responses = [respond("2/4"), "7", respond("8"), respond("2/4"), "so <answer>7</answer>"]
    assert judge.score(gold, responses) == [
        {"answer": 1.0, "format": 1.0},
        {"answer": 0.0, "format": 0.0},
        {"answer": 0.0, "format": 1.0},
        {"answer": 1.0, "format": 1.0},
        {"answer": 1.0, "format": 0.25},
    ]
    assert judge.score([], []) == []
    with pytest.raises(ValueError):
        judge.score(gold, responses[:2])


BOMBS = ["9^{9^{9^{9}}}", "(10^8)!", "123456789^{987654321}", "99999999!"]


def matrix(entry: str) -> str:
    """Returns a product with a matrix, which math-verify compares."""
    return rf"2\begin{{pmatrix}}{entry}\end{{pmatrix}}"


@pytest.mark.parametrize("answer", [*BOMBS, "x=" + BOMBS[0], BOMBS[0] + "-" + BOMBS[0], r"\sqrt{2}^{" + BOMBS[0] + "}"])
def test_a_number_too_large_to_compute_is_wrong_at_once(answer: str) -> None:
    started = time.perf_counter()
    assert is_same_formula("2", answer) in (False, None)
    assert is_same_formula("x^2+1", answer) is is_same_formula("2", answer), "a gold answer with letters costs no more"
    assert not verify.is_equivalent((r"\sqrt{2}", answer))
    assert time.perf_counter() - started < 0.5


def test_an_endless_comparison_costs_only_its_deadline(caplog) -> None:
    answers = ["x=1", *map(matrix, BOMBS), "x=2", r"\frac{14}{7}", "x=3", "\\sqrt{4}"]
    golds = ["2", *[matrix("2")] * 4, "2", "2", "2", "2"]
    built = reward(num_workers=2, deadline=2.0)
    try:
        scores = built.score([prompt(gold) for gold in golds], [respond(a) for a in answers])
        assert [s["answer"] for s in scores] == [0, 0, 0, 0, 0, 1, 1, 0, 1]
        assert "was not done after 2.0 s" in caplog.text
        caplog.clear()
        assert built.score([prompt(matrix("2"))] * 100, [respond(matrix(BOMBS[0]))] * 100)[99]["answer"] == 0
        assert caplog.text == "", "a verdict is remembered, so the bomb went off once"
    finally:
        built.close()


def test_exact_takes_no_expression_for_its_value(judge) -> None:
    built = reward(exact=True)
    answers = ("46", "46.0", "12+34", "12+34=46", "x=46", "46 apples", "2 \\cdot 23", "46%")
    assert [built.score([prompt("46")], [respond(a)])[0]["answer"] for a in answers] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert built.score([prompt("1024")], [respond("2^{10}")])[0]["answer"] == 0.0
    built.close()
    assert judge.score([prompt("1024")], [respond("2^{10}")])[0]["answer"] == 1.0, "why the option is there"


@pytest.mark.parametrize("seed", range(4))
def test_compare_never_raises(seed: int) -> None:
    """The comparison runs in the trainer's process without a deadline, and must never raise."""
    draw = random.Random(seed)
    pieces = ["\\boxed{", "\\frac", "0.", "/0", "\\text{", " or ", " and ", "\\overline{", "e9999999", "\\pm "]
    pieces += [*"{}(],1-^_=$%<½²٣\x00\n\ud800", "1,234", "\\\\", "()", "[]"]
    for _ in range(3000):
        gold, answer = ("".join(draw.choices(pieces, k=draw.randrange(1, 12))) for _ in range(2))
        assert compare(gold, answer) in (True, False, None)


def test_a_comparison_that_raises_is_a_wrong_answer(monkeypatch) -> None:
    """A fault of the comparison at one response of a model would end the run."""
    monkeypatch.setattr("sspo_answers.compare.clean", lambda _: [][0])
    built = reward()
    assert built.score([prompt("1")], [respond("2")])[0]["answer"] == 0.0
    built.close()


def test_a_worker_has_sympy_and_not_torch() -> None:
    names = ("torch", "transformers", "sympy", "math_verify")
    with DeadlinePool(pool_jobs.work, 1, 30.0, None, verify.prepare) as pool:
        assert pool.map([("modules", names)]) == [["sympy", "math_verify"]]


class Own:
    """A reward that gives what its user says."""

    def __init__(self, scored: Callable[[], Any]) -> None:
        self._scored = scored

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Any:
        return self._scored()

    def close(self) -> None: ...


@pytest.mark.parametrize("value", [math.nan, None, "1.0", 10**400, 1e308, torch.ones(2)])
def test_a_score_that_is_not_finite_names_the_prompt(value: Any) -> None:
    broken: Reward = Own(lambda: [{"answer": 1.0}, {"answer": 1.0, "style": value}])
    with pytest.raises(UserError, match=r"Own.score gave .*'style'.*'b\.jsonl:7': .* finite"):
        checked_score(broken, [prompt("1", "a.jsonl:1"), prompt("1", "b.jsonl:7")], ["", ""])


@pytest.mark.parametrize(
    ("scored", "message"),
    [
        (lambda: [{"answer": 1.0}], r"returned \[.*\] for 2 responses: it must return a list with a dict for each"),
        (lambda: None, "Own.score returned None for 2 responses: it must return a list"),
        (lambda: (part for part in ()), "returned <generator object .* for 2 responses: it must return a list"),
        (lambda: [1.0, 0.0], r"Own.score gave 1.0 for a response to prompt 'x.jsonl:1': it must give a dict"),
        (lambda: [{}["gold"]], r"test_math_reward.py, line \d+ \(.*\): KeyError: 'gold'"),
    ],
)
def test_a_mistake_of_a_reward_of_ones_own_is_one_sentence(scored: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked_score(Own(scored), [prompt("1")] * 2, ["", ""])


def test_numbers_of_other_libraries_become_floats() -> None:
    parts = {"answer": np.float32(0.5), "format": torch.tensor(1.0), "right": np.bool_(True), "length": 3}
    (found,) = checked_score(Own(lambda: [parts]), [prompt("1")], [""])
    assert found == {"answer": 0.5, "format": 1.0, "right": 1.0, "length": 3.0}
    assert {type(value) for value in found.values()} == {float}, "others cannot be written as JSON"


@pytest.mark.parametrize("build", ["lambda: None", "lambda: print", "lambda: type('R', (), {'score': 1})()"])
def test_an_object_that_is_no_reward_is_refused(tmp_path, build: str) -> None:
    (tmp_path / "own.py").write_text(f"build = {build}\n")
    with pytest.raises(UserError, match=r"own.py:build' is built as .*, which has no .*close: let it return an object"):
        open_reward(f"{tmp_path}/own.py:build", {})
