"""Answers in plain text or rare LaTeX: relations in words, binomials, products of units, repeating decimals."""

import pytest

from sspo_answers.verify import is_equivalent


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"x \ne 2", "x != 2", True),
        (r"x \ne 2", "x!=2", True),
        (r"x \ne 2", r"x \not= 2", True),
        (r"x \ne 2", r"2 \ne x", True),
        (r"x \ne 2", "x is not equal to 2", True),
        (r"x \ne 2", r"R \ {2}", True),
        (r"x \ne 2", "x != 3", False),
        (r"x \ne 2", "x is equal to 2", False),
        ("n! = 24", "n!=24", True),  # a factorial
        (r"(-\infty,2)\cup(3,\infty)", "R - [2,3]", True),
        (r"(-\infty,2)\cup(3,\infty)", "R - (2,3)", False),
        (r"(-\infty,2)\cup(3,\infty)", "(-oo,2) U (3,oo)", True),
        (r"(-\infty,2)\cup(3,\infty)", r"\{x \mid x<2\}\cup\{x\mid x>3\}", True),
        (r"(-\infty,2)\cup(3,\infty)", r"\{x \mid x<2\}\cap\{x\mid x>3\}", False),
        ("x>5", "x is greater than 5", True),
        ("x>5", "x is greater than or equal to 5", False),
        (r"x \le 5", "x is less than or equal to 5", True),
        (r"x \ge 3", "x is at least 3", True),
        ("3", "x is at least 3", False),
        (r"x \le 3", "x is at least 3", False),
        (r"x \ge 3", "x ⩾ 3", True),
        (r"x \ne 2, x \ne 3", r"x \notin \{2,3\}", True),
        (r"x \ne 2, x \ne 3", r"x \not\in \{2,3\}", True),
        (r"\{2,3\}", r"x \notin \{2,3\}", False),
        (r"x \in \{2,3\}", "x ∉ {2,3}", False),
        (r"\emptyset", "Ø", True),
        ("all real numbers", "every real number", True),
        ("all real numbers", "{x | x ∈ R}", True),
        (r"\infty", "oo", True),
        (r"\infty", "-oo", False),
        ("x=2, y=3", r"\begin{aligned}x&=2\\y&=3\end{aligned}", True),
        ("x=2, y=3", r"\begin{aligned}x&=3\\y&=2\end{aligned}", False),
        ("x=2, y=3", "x: 2, y: 3", True),
        ("x=2, y=3", "x: 3, y: 2", False),
        ("(2,3)", r"\vec{v}=2\vec{i}+3\vec{j}", True),
        (r"\mathbf{v}=2\mathbf{i}+3\mathbf{j}", "(2,3)", True),
        (r"\vec{v}=2\vec{i}+3\vec{j}", "(3,2)", False),
        (r"\vec{v}=2\vec{i}+3\vec{j}", r"\vec{u}=(2,3)", False),
    ],
)
def test_relations_and_sets(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\binom{n}{2}", "nC2", True),
        (r"\binom{n}{2}", "^nC_2", True),
        (r"\binom{n}{2}", "{}_nC_2", True),
        (r"\binom{n}{2}", "n choose 2", True),
        (r"\binom{n}{2}", "nC3", False),
        ("nC2", r"\frac{n(n-1)}{2}", True),
        (r"\binom{2n}{n}", "{}^{2n}C_n", True),
        (r"\binom{10}{3}", "10 choose 3", True),
        (r"\binom{10}{3}", r"\mathrm{C}_{10}^{3}", True),
        (r"\binom{10}{3}", "C^3_{10}", True),
        (r"\binom{10}{3}", "10 choose 4", False),
        ("12", "12 choose 2", False),
        ("NaC2H3O2", "NaC2H3O2", True),
    ],
)
def test_binomials(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"9.8\text{ m/s}^2", r"9.8\ ms^{-2}", True),
        (r"9.8\text{ m/s}^2", "9.8 ms^-2", True),
        (r"9.8\text{ m/s}^2", r"9.8\ ms^{-1}", False),
        ("5 J/mol", r"5\,\mathrm{Jmol^{-1}}", True),
        ("5 J/mol", r"5\,\mathrm{kJmol^{-1}}", False),
        ("5 N/m", "5 Nm^{-1}", True),
        ("5 N/m", "5 Nm^{-2}", False),
        ("5 W/(m K)", "5 Wm^{-1}K^{-1}", True),
        ("2 J/(kg K)", "2 Jkg^{-1}K^{-1}", True),
        ("2 J/(kg K)", "2 Jkg^{-1}K", False),
        ("12", r"12\Omega", True),
        (r"12\,\Omega", "12Ω", True),
        (r"12\,\Omega", "12kΩ", False),
        (r"45^\circ", r"45{}^\circ", True),
        (r"\frac{3}{2}", r"1{\frac{1}{2}}", True),
        ("0.5", "0{.}5", True),
        (r"0.\overline{3}", "0.3\u0305", True),
        (r"0.\overline{12}", "0.1\u03052\u0305", True),
        (r"0.\overline{3}", "0.3 repeating", True),
        ("0.3", "0.3 repeating", False),
        (r"0.1\overline{6}", "0.16 repeating", False),  # or 0.161616...
        ("-3", "~-3", False),
        ("16", "16 sec", True),
        ("16 s", "16 sec", True),
        (r"2\frac{3}{8}", "2 and 3/8", True),
        ("2, 3/8", "2 and 3/8", True),
        (r"\arctan 2", "arctg 2", True),
        (r"\arctan 2", "arcctg 2", False),
    ],
)
def test_numbers_and_units(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("Yes", "是", True),
        ("Yes", "是的", True),
        ("Yes", "不是", False),
        ("No", "不是", True),
        ("B", "【B】", True),
        ("A", "【B】", False),
        ("(1,-2)", "点(1,-2)", True),
        (r"\{1,2,3\}", "set {1,2,3}", True),
        (r"\{1,2,3\}", "1, 2 und 3", True),
        (r"\{1,2,3\}", "1, 2 y 3", True),
        ("12", "12 und 13", False),
        ("12", "Vậy đáp án là 12", True),
        ("12", "解得x=12", True),
        ("12", "总共12种方法", True),
        ("12", "12種", True),
        ("12", "【12】", True),
        ("12", "«12»", True),
        ("12", "- **12**", True),
        (r"\frac{x^3}{3}+C", r"\frac{x^3}{3}+\text{constant}", True),
        (r"\frac{x^3}{3}+C", r"\frac{x^3}{3}+C_1", True),
        (r"\frac{x^3}{3}+C", r"\frac{x^3}{3}+x", False),
    ],
)
def test_words_and_constants(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right
