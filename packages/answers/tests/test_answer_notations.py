"""Permutations, chemical formulas, families with an integer parameter, orders, times in words, shares of a whole."""

import pytest

from sspo_answers.compare import compare
from sspo_answers.verify import is_equivalent


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"(1\ 2\ 3)", "(1 3 2)", False),
        ("(1 2 3)", "(2 3 1)", True),
        ("(1 2 3)(4 5)", "(5 4)(1 2 3)", True),
        ("(1 2 3)(4 5)", "(1 3 2)(4 5)", False),
        ("(1 2)(2 3)", "(2 3)(1 2)", False),  # a product of cycles that share a member
        ("(1 2 3)", "1, 2, 3", False),
        ("(1 2)", "(1 2)(3)", True),
        ("BADC", "ABCD", False),
        ("BADC", "B, A, D, C", True),
        ("AC", "C, A", True),
        ("A, C", "A, C only", True),
        ("I and III", "I and III only", True),
        ("A, C", "A only", False),
    ],
)
def test_orders_of_letters_and_numbers(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("H_2O", "H2O", True),
        ("H_2O", r"\ce{H2O}", True),
        ("H_2O", "H₂O", True),
        ("H_2O", "H_2O_2", False),
        ("C_6H_{12}O_6", "C6H12O6", True),
        ("Na^+", r"\mathrm{Na^{+}}", True),
        ("Na^+", "Na+", True),
        ("Na^+", "Na^-", False),
        ("Fe^{3+}", "Fe^{2+}", False),
        ("NO_2", "N_2O", False),
        (r"Ca(OH)_2", r"\mathrm{Ca(OH)_2}", True),
        (r"2H_2 + O_2 \to 2H_2O", r"O2 + 2H2 \rightarrow 2H2O", True),
        (r"2H_2 + O_2 \to 2H_2O", r"2H_2O \to 2H_2 + O_2", False),
        (r"2H_2 + O_2 \to 2H_2O", r"H_2 + O_2 \to H_2O", False),
        (r"A \to B", r"A \rightarrow B", True),
        ("H_2O", "O2" * 400 + "A", False),  # which a search with backtracking would not end
        ("O2" * 400 + "A", "H_2O", False),
    ],
)
def test_chemical_formulas(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\frac{\pi}{2}+k\pi, k\in\mathbb{Z}", r"k\pi-\frac{\pi}{2}, k\in\mathbb{Z}", True),
        (r"\frac{\pi}{2}+k\pi, k\in\mathbb{Z}", r"90^\circ+180^\circ n, n\in\mathbb{Z}", True),
        (r"\frac{\pi}{2}+k\pi, k\in\mathbb{Z}", r"k\pi-\frac{\pi}{2}, k\in\mathbb{N}", False),
        (r"\frac{\pi}{2}+k\pi, k\in\mathbb{Z}", r"k\pi-\frac{\pi}{3}, k\in\mathbb{Z}", False),
        (r"\frac{\pi}{2}+k\pi, k\in\mathbb{Z}", r"2k\pi-\frac{\pi}{2}, k\in\mathbb{Z}", False),
        (r"2k+1, k\in\mathbb{Z}", r"2k-1, k\in\mathbb{Z}", True),
        (r"2k+1, k\in\mathbb{Z}", r"4k-1, k\in\mathbb{Z}", False),
        (r"x=2k, y=k, k\in\mathbb{Z}", r"x=k, y=2k, k\in\mathbb{Z}", False),
        (r"x=2+3k, y=1-2k, k\in\mathbb{Z}", r"x=5+3k, y=1-2k, k\in\mathbb{Z}", False),
        (r"2k+1, k\in\mathbb{Z}", r"4k+1 or 4k+3, k\in\mathbb{Z}", True),
        (
            r"(-1)^k\frac{\pi}{6}+k\pi, k\in\mathbb{Z}",
            r"\frac{\pi}{6}+2k\pi or \frac{5\pi}{6}+2k\pi, k\in\mathbb{Z}",
            True,
        ),
        (r"(2k\pi, 2k\pi+\pi), k\in\mathbb{Z}", r"(2k\pi+\pi, 2k\pi+2\pi), k\in\mathbb{Z}", False),
        (r"[2k\pi, 2k\pi+\pi], k\in\mathbb{Z}", r"[2k\pi+\pi, 2k\pi+2\pi], k\in\mathbb{Z}", False),
        ("all odd positive integers", "all odd integers", False),
        ("all odd positive integers", "positive odd integers", True),
        ("all odd integers", "all odd positive integers", False),
        ("all non-negative even integers", "all even nonnegative integers", True),
        (r"n \ge 3", r"all integers $n \ge 3$", True),
        (r"[3, \infty)", r"all integers $n \ge 3$", False),
        (r"x \ge 3", r"all integers $x \ge 3$", False),
        (r"(-\infty,-1)\cup(2,\infty)", r"\mathbb{R} \setminus [-1,2]", True),
        (r"(-\infty,-1)\cup(2,\infty)", r"\mathbb{R} \setminus (-1,2)", False),
        (r"(-\infty,-1]\cup(2,\infty)", r"\mathbb{R} \setminus (-1,2]", True),
        ("a > b > c", "a > b and b > c", True),
        ("a > b > c", "a > b and c > b", False),
        (r"\neg p \lor q", r"\neg p \land q", False),
        (r"\neg p \lor q", r"q \vee \lnot p", True),
    ],
)
def test_families_sets_and_orders(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\frac{4}{3}\pi r^3", "4/3 π r^3", True),
        (r"\frac{4}{3}\pi", r"4/3\pi", True),
        (r"\frac{3}{4}\pi", r"4/3\pi", False),
        ("y = \\frac{1}{2}x + 3", "y = 1/2x + 3", True),
        (r"\frac{n(n+1)}{2}", "1/2 n(n+1)", True),
        (r"\frac{n(n+1)}{2}", "C(n+1,2)", True),
        (r"\frac{n(n+1)}{2}", "C(n,2)", False),
        (r"\frac{3}{7}", "³⁄₇", True),
        (r"\frac{3}{7}", "⁷⁄₃", False),
        (r"37.5^\circ", r"37^\circ 30'", True),
        (r"37.5^\circ", r"37^\circ 50'", False),
        (r"36^\circ 52' 12''", r"36.87^\circ", True),
        (r"4\,\mu\text{F}", "4 uF", True),
        ("4 mF", "4 uF", False),
        (r"\infty", r"It diverges to $\infty$", True),
        (r"\infty", r"diverges to $-\infty$", False),
        (r"7 \text{ R } 3", "7 remainder 3", True),
        (r"7 \text{ R } 3", "7 with a remainder of 2", False),
        ("1/6", "a probability of 1/6", True),
        ("1776", "in the year 1776", True),
        ("1776", "in 1777", False),
        ("20%", "a 20% increase", True),
        ("20%", "an increase of 20%", True),
        ("20%", "a 25% increase", False),
        ("25", "I refuse to answer 25", False),
        ("36", "36, because half is 36 and so the total is 72", False),
        ("36", "36, since each has 36, giving 72 together", False),
        ("36", "36, because each has 18, so together they have 36", True),
        ("36", "36 (because each is 36, so the total is 72)", False),
        ("36", "36 (since 6 * 6 = 36)", True),
        ("x+2y-5=0", "y = (5-x)/2", True),
        ("x+2y-5=0", "y = (5+x)/2", False),
        ("x^2-y-1=0", "y=(x+1)(x-1)", True),
        ("(1,2)", "P = (1; 2)", True),
    ],
)
def test_numbers_and_formulas(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("12:00 PM", "noon", True),
        ("12:00 PM", "12 noon", True),
        ("12:00 PM", "midnight", False),
        ("12:00 AM", "midnight", True),
        ("5:30 PM", "half past five in the afternoon", True),
        ("5:30 PM", "half past six in the afternoon", False),
        ("5:45", "a quarter to six", True),
        ("12:50", "ten to one", True),
        ("2:15", "quarter past two", True),
        ("3:20", "3/20", True),  # a ratio
        ("5:45", "a quarter past five", False),
        ("15 minutes", "a quarter of an hour", True),
        ("45 minutes", "three quarters of an hour", True),
        ("3/4", "three quarters of the cake", True),
        ("3/4", "3/4 of the cake", True),
        ("20%", "20% of the students", True),
        ("1/2", "half of the class", True),
        ("1/2", "half of the number", False),
        ("1/2", "1/2 of 12", False),
        ("12", "12 of the students", False),
        ("1/4", "3/4 of the cake", False),
        ("3/4", "3/4 of a dozen", False),
        ("1/2", "half of a third", False),
        ("1/2", "half of the half", False),
        ("0.2", "20% of the tip or more", False),
    ],
)
def test_times_and_shares(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


def test_a_bracket_that_is_never_closed_is_no_error() -> None:
    assert compare("36", "C(n+1,C(n+1,") is not True
