"""Lists, congruences, families with a parameter, multiples of points, and sets with exceptions."""

import pytest

from megatron_sspo.reward.answers.verify import is_equivalent


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("1,000,000", "1, 0, 0", False),
        ("1,000,000", "1,000,00", False),
        ("1,000,000", "1, 000, 000", True),
        ("1,050", "1, 50", False),
        ("100,200", "100 and 200", True),
        ("Alice, Bob", "Alice or Bob", False),
        ("Alice, Bob", "Bob and Alice", True),
        ("Alice or Bob", "Bob or Alice", True),
        ("A, C, D", "A, C or D", False),
        ("A, C, D", "A, C and D", True),
        ("x=1, x=2", "x=1 or x=2", True),
        ("k<-2 or k>2", "k<-2 and k>2", False),
        ("k<-2 or k>2", "k<-2, k>2", True),
        ("x=3, y=-1", r"\{x=3, y=-1\}", True),
        ("x=3, y=-1", r"\{x=-1, y=3\}", False),
        ("x=2, y=-1", "- $x = 2$\n- $y = -1$", True),
        ("x=2, y=-1", "- $x = 2$\n- $y = 1$", False),
        ("10-12", "-2", False),
        ("10-12", "10–12", True),
    ],
)
def test_lists(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"x \equiv 3 \pmod{7}", r"x \equiv -4 \pmod{7}", True),
        (r"x \equiv 3 \pmod{7}", r"x \equiv 4 \pmod{7}", False),
        (r"x \equiv 3 \pmod{7}", r"x \equiv 3 \pmod{14}", False),
        (r"x \equiv 3 \pmod{7}", r"y \equiv -4 \pmod{7}", False),
        (r"3 \pmod{7}", r"123456 \pmod{7}", False),  # a task
        (r"x \equiv 3 \pmod{7}", r"x = 7k+3, k\in\mathbb{Z}", True),
        (r"x \equiv 3 \pmod{7}", "x = 3 + 7n for integers n", True),
        (r"x \equiv 3 \pmod{7}", r"x = 7k+3, k\in\mathbb{N}", False),
        (r"x \equiv 3 \pmod{7}", r"x = 3k+7, k\in\mathbb{Z}", False),
        (r"x \equiv 1, 4 \pmod{5}", r"x \equiv \pm 1 \pmod 5", True),
        (r"x \equiv 1, 4 \pmod{5}", r"x \equiv 1 \pmod 5", False),
        ("3", r"3 \pmod 7", False),
        (r"n=3k, k\in\mathbb{N}", r"n=3m \text{ for } m\in\mathbb{N}", True),
        (r"n=3k, k\in\mathbb{N}", "n = 3m where m is a natural number", True),
        (r"n=3k, k\in\mathbb{N}", r"n=3m \text{ for } m\in\mathbb{Z}", False),
        (r"n=3k, k\in\mathbb{N}^{*}", "n = 3m for all positive integers m", True),
        (r"n=3k, k\in\mathbb{N}^{*}", "n = 3m for all nonnegative integers m", False),
        (r"n=3k, k\in\mathbb{N}", r"n=4m \text{ for } m\in\mathbb{N}", False),
    ],
)
def test_congruences_and_families(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\frac{1}{\sqrt{14}}(1,2,3)", r"(\frac{1}{\sqrt{14}},\frac{2}{\sqrt{14}},\frac{3}{\sqrt{14}})", True),
        (r"\frac{1}{\sqrt{14}}(1,2,3)", r"\frac{\sqrt{14}}{14}(1,2,3)", True),
        (r"\frac{1}{\sqrt{14}}(1,2,3)", r"\frac{1}{14}(1,2,3)", False),
        (r"\frac{1}{\sqrt{14}}(1,2,3)", r"\frac{1}{\sqrt{14}}(1,2,-3)", False),
        (r"(\frac{\sqrt2}{2},-\frac{\sqrt2}{2})", r"\frac{1}{\sqrt2}(1,-1)", True),
        (r"(\frac{\sqrt2}{2},-\frac{\sqrt2}{2})", r"-\frac{1}{\sqrt2}(1,-1)", False),
        ("(2,4)", r"2\langle 1,2\rangle", True),
        ("(2,4)", "2(2,4)", False),
        ("(2,4)", "f(2,4)", False),
        ("(-1,-2)", "-(1,2)", True),
        (r"\vec{AB}=(3,-4)", r"\overrightarrow{AB}=(3,-4)", True),
        (r"\vec{AB}=(3,-4)", r"\vec{BA}=(3,-4)", False),
        ("AB=5", "BA=5", True),
    ],
)
def test_vectors(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"x \ne 2, -2", r"x \ne \pm 2", True),
        (r"x \ne 2, -2", r"x \ne -2 \text{ and } x \ne 2", True),
        (r"x \ne 2, -2", r"x \ne 2", False),
        (r"x \ne 2, -2", r"y \ne \pm 2", False),
        (r"x \ne \pm 2", r"(-\infty,-2)\cup(-2,2)\cup(2,\infty)", True),
        (r"x \ne \pm 2", r"(-\infty,2)\cup(2,\infty)", False),
        (r"x \ne \frac{1}{2}", r"\mathbb{R}\setminus\{\frac12\}", True),
        (r"x \ne \frac{1}{2}", r"x \ne 0.6", False),
        (r"x \ne 0", r"x \in \mathbb{R}, x \ne 0", True),
        (r"x \ne 0", r"x \in \mathbb{R}, y \ne 0", False),
        (r"[\frac{1}{2},\infty)", r"\left\{x\,\middle|\,x\ge\frac{1}{2}\right\}", True),
        (r"[\frac{1}{2},\infty)", r"\left\{x\,\middle|\,x>\frac{1}{2}\right\}", False),
        (r"\frac{dy}{dx}=-\frac{x}{y}", r"y'=-\frac{x}{y}", True),
        (r"\frac{dy}{dx}=-\frac{x}{y}", r"x'=-\frac{x}{y}", False),
        (r"\frac{dy}{dx}=-\frac{x}{y}", r"y=-\frac{x}{y}", False),
    ],
)
def test_exceptions_and_derivatives(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right
