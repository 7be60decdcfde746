"""Tests of formulas: how they are read, their values, and the rule of precision."""

import random
import subprocess
import sys
from fractions import Fraction

import pytest
import sympy

from sspo_answers.answer import clean
from sspo_answers.evaluate import arithmetic_value, is_same_equation, is_same_formula, value_of
from sspo_answers.formula import UnreadError, parse_formula
from sspo_answers.number import read_number


@pytest.mark.parametrize(
    "text",
    [
        *(
            "1/2x",
            r"\log x",
            r"\sin x/2",
            "2^10",
            "3!!",
            "x^2^2",
            "P(1+r)",
            "1 2",
            "5 5",
            "x=5",
            "1,2",
            "x<1",
            r"\int x",
        ),
        *("(", "1+", "(1", "|x", "x_", "", r"\frac{1}", "2**3", "x'", "(" * 100 + "1" + ")" * 100),
        *("2" * 500, r"1\frac{3}{2}", r"60^\circ", "16_8", r"\phantom{5}6", "5%"),
    ],
)
def test_what_has_no_one_reading_is_not_read(text: str) -> None:
    with pytest.raises(UnreadError):
        parse_formula(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3*4", 14),
        ("2-3-4", -5),
        ("12/3/2", 2),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2^{3}", 8),
        ("2^{-1}", Fraction(1, 2)),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac{1+2}{4}", Fraction(3, 4)),
        ("0.5", Fraction(1, 2)),
        ("4!", 24),
        (r"\binom{5}{2}", 10),
        (r"2 \cdot -3", -6),
        (r"\lfloor 2.5 \rfloor", 2),
        ("|2-5|", 3),
        ("2(3)(4)", 24),
    ],
)
def test_rational_values_are_exact(text: str, value: Fraction) -> None:
    assert value_of(text) == value


def test_values_agree_with_sympy() -> None:
    draw = random.Random(0)
    functions = ("sin", "cos", "exp", "sqrt", "ln")
    for _ in range(60):
        n, m = draw.randrange(1, 9), draw.randrange(1, 9)
        name = draw.choice(functions)
        latex = rf"\frac{{{n}\pi}}{{{m}}} - \{name}{{{n}}} \cdot {m}^{{\frac{{1}}{{3}}}}"
        exact = n * sympy.pi / m - getattr(sympy, name)(n) * sympy.cbrt(m)
        found = value_of(latex)
        assert found is not None
        assert abs(found - Fraction(str(exact.evalf(50)))) < Fraction(1, 10**40) * max(1, abs(found))


def test_identities_of_random_polynomials_are_recognized() -> None:
    draw, x, y = random.Random(1), *sympy.symbols("x y")
    for _ in range(30):
        product = sympy.prod(
            draw.randrange(-5, 6) * x + draw.randrange(1, 6) * y + draw.randrange(-5, 6) for _ in "123"
        )
        expanded = sympy.expand(product)
        changed = expanded + sympy.Rational(1, 10**9)
        gold, same, other = (clean(sympy.latex(tree)) for tree in (product, expanded, changed))
        assert is_same_formula(gold, same)
        assert is_same_formula(gold, other) is False


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        (r"\sqrt{x^2}", "x", False),
        (r"\sqrt[3]{x^3}", "x", True),
        (r"x^{\frac13}", r"\sqrt[3]{x}", True),
        (r"\ln|x|", r"\ln x", False),
        (r"(1+i)^2", "2i", True),
        (r"2-\sqrt{3}", r"\tan 15^\circ", True),
        (r"2-\sqrt{3}", r"\tan(15^{\circ})", True),
        (r"2-\sqrt{3}", r"\tan 15", False),
        (r"e^{i\pi}", "-1", True),
        (r"10^{100}+\sqrt2", r"10^{100}+\sqrt3", None),
        (r"\sqrt{10^{60}+1}", "10^{30}", None),
        (r"10^{100}x+1", "10^{100}x+2", False),
        ("10^{100}+1", "10^{100}", False),
        ("0", "e^{-100}", False),
        ("2", "9^{9^{9^9}}", False),
        ("9^{9^{9^9}}", "2", False),
        ("(10^8)!", "2", False),
        ("2^{100000}", "2", False),
        ("2^{100000}", "4^{50000}", False),
        ("2024!", r"2024 \cdot 2023!", False),
        ("3^{20240}+1", "9^{10120}", False),
        ("2^{3}5", "40", True),
        ("2^{3}5", "2^{35}", False),
        (r"\frac{1}{0}", "2", None),
        ("2", r"\frac{1}{0}", False),
        ("(-1)^n", "(-1)^{n+2}", True),
        ("(-1)^n", "(-1)^{n+1}", False),
    ],
)
def test_verdicts(gold: str, answer: str, verdict: bool | None) -> None:
    assert is_same_formula(gold, answer) is verdict


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        (("y", "2x+1"), ("2x-y", "-1"), True),
        (("y", "2x+1"), ("2y", "4x+2"), True),
        (("y", "2x+1"), ("2y", "4x+1"), False),
        (("x^2+y^2", "1"), ("y^2", "1-x^2"), True),
        (("x^2+y^2", "1"), ("x^2", "1"), None),
        (("y", r"\frac{1}{x}"), ("xy", "1"), False),
    ],
)
def test_equations(gold: tuple[str, str], answer: tuple[str, str], verdict: bool | None) -> None:
    assert is_same_equation(gold, answer) is verdict


@pytest.mark.parametrize(
    ("decimal", "value", "verdict"),
    [
        ("0.333333333333", Fraction(1, 3), True),
        ("0.33333333333", Fraction(1, 3), False),  # eleven digits
        ("0.0833333333333", Fraction(1, 12), True),  # twelve: the zeros in front do not count
        ("0.666666666666", Fraction(2, 3), True),
        ("0.666666666667", Fraction(2, 3), True),
        ("0.666666666668", Fraction(2, 3), False),
        ("-0.333333333333", Fraction(1, 3), False),
        ("0.3333333333333333148", Fraction(1, 3), True),  # a double with all of its digits
        ("0.3333333333343333", Fraction(1, 3), False),
        ("333333333333", Fraction(10**12, 3), False),  # an integer states itself
    ],
)
def test_a_decimal_of_twelve_digits_states_a_real_number(decimal: str, value: Fraction, verdict: bool) -> None:
    number = read_number(decimal)
    assert number is not None
    assert number.states(value) is verdict


def test_arithmetic_is_digits_alone() -> None:
    assert arithmetic_value(r"16 - 3 \cdot 4") == 4
    assert [arithmetic_value(text) for text in ("2^{10}", "x", "1/0", "5!", "1" * 101, r"\sqrt{4}")] == [None] * 6


def test_arithmetic_in_the_trainer_needs_no_import() -> None:
    program = (
        "import sys; from sspo_answers.compare import compare;"
        "print(compare('9', '16-3-4=9'), compare('9', '16-3-5=9'), 'mpmath' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]
