"""Tests of the reward of a last turn in CodeAct, with programs in a real sandbox."""

from dataclasses import replace

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.reward.codeact import reward
from megatron_sspo.types import Prompt

SQUARE = "def f(x): return x * x"


def prompt(answer: str = "", **metadata) -> Prompt:
    return Prompt(id=f"{answer}{metadata}", tokens=(1,), answer=answer, metadata=metadata)


def ends(solution: str) -> str:
    return f"<think> hm </think> <solution> {solution} </solution>"


TESTED = prompt(tests=["assert f(3) == 9"])
CASES = prompt(answer="seldom looked at", cases=[{"stdin": "3", "stdout": "9"}])


@pytest.fixture(scope="module")
def judge():
    built = reward(limits={"wall_seconds": 20.0, "processes": 20})
    yield built
    built.close()


def test_solutions_are_compared_or_run_as_their_row_says(judge) -> None:
    judge.metrics()
    pairs = [
        (prompt("1/2"), ends("0.5"), 1.0, 1.0),
        (prompt("Paris"), ends("Paris."), 1.0, 1.0),
        (prompt("3"), ends("4"), 0.0, 1.0),
        (prompt("3"), ends("3 or 4"), 0.0, 1.0),
        (prompt("3"), "<solution>4</solution> no: <solution>3</solution>", 1.0, 0.25),
        (prompt("3"), "<think> hm </think> <execute> 3 </execute>", 0.0, 0.25),
        (prompt("3"), "<think> hm </think> <answer> 3 </answer>", 0.0, 0.25),
        (prompt("3"), "", 0.0, 0.0),
        (TESTED, ends(SQUARE), 1.0, 1.0),
        (TESTED, ends(f"\n```python\n{SQUARE}\n```\n"), 1.0, 1.0),
        (TESTED, ends("def f(x): return x"), 0.0, 1.0),
        (TESTED, "<think> hm </think>", 0.0, 0.25),
        (CASES, ends("print(int(input()) ** 2)"), 1.0, 1.0),
        (CASES, ends("seldom looked at"), 0.0, 1.0),
        (replace(prompt("3"), prefill="<think>"), "hm </think> <solution> 3 </solution>", 1.0, 1.0),
    ]
    found = judge.score([p for p, *_ in pairs], [response for _, response, *_ in pairs])
    assert found == [{"answer": answer, "format": form} for _, _, answer, form in pairs]
    shares = {name: round(15 * share) for name, share in judge.metrics().items() if "seconds" not in name}
    assert shares == {"code/passed": 7, "code/failed": 3, "code/error": 1, "code/no_solution": 4}
    assert judge.score([], []) == []


@pytest.mark.parametrize(
    ("answer", "solution", "expected"),
    [
        ("HELLO WORLD", "HELLO WORLD", 1.0),
        ("HELLO WORLD", "hello world", 0.0),
        ("Hello, World", "World, Hello", 0.0),
        ("version 1.2", "version 1.2.", 1.0),
        ("version 1.2", "version 1 2", 0.0),
        ("the fox", "fox", 0.0),
        ("Paris", "paris", 0.0),
        ("True", "true", 1.0),
        ("no", "No.", 1.0),
        ("3.5 kg", "3.50", 1.0),
        ("x = 3, x = 4", "3 and 4", 1.0),
        ("[1, 2, 3]", "[1,2,3]", 1.0),
        (r"\frac{1}{2}", "1/2", 1.0),
        ("[[1,2],[3,4]]", "[[1, 2], [3, 4]]", 1.0),
        ("1 2\n3 4", "1 2\n3 4", 1.0),
        ("1 2\n3 4", "1 2 3 4", 0.0),
        ("*\n**", "* **", 0.0),
        ("007", "7", 0.0),
        ("# 5", "5", 0.0),
        ("1.100.200", "1100200", 0.0),
        ("[]", "()", 0.0),
    ],
)
def test_text_is_compared_exactly_and_numbers_by_value(judge, answer, solution, expected) -> None:
    assert judge.score([prompt(answer)], [ends(solution)])[0]["answer"] == expected


def test_a_row_with_malformed_checks_is_named(judge) -> None:
    with pytest.raises(UserError, match="a test is not Python"):
        judge.score([prompt(tests=["assert f( == 1"])], [""])
