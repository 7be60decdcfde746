"""Lists, congruences, families with a parameter, multiples of points, and sets with exceptions."""

import pytest

from sspo_answers.verify import is_equivalent

MANY = ", ".join(map(str, range(1, 41)))
MATRIX = r"\begin{pmatrix}" + r"\\".join(["1&2&3&4&5&6"] * 5 + ["1&2&3&4&6&1"]) + r"\end{pmatrix}"


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
        ("[]", "()", False),
        ("()", "[]", False),
        ("[[],[1]]", "[(),[1]]", False),
        (r"\{1,2\}", r"\{1,1,2\}", True),
        (r"\{1,2\}", "1, 1, 2", False),
        ("7", r"\{7,7\}", False),
        ("[0,2]", r"[0,1]\cup(1,2]", True),
        ("[0,2]", r"(1,2]\cup[0,1.5)", True),
        ("[0,2]", r"[0,1)\cup(1,2]", False),
        (r"\{1,3\}\cup\{2,4\}", r"\{1,2,3,4\}", True),
        (r"\{1,2,3\}", r"\{1,3\} \cup \{2,3\}", False),  # the task itself
        (r"\{1,3\}\cup\{2,4\}", "1, 2, 3, 4", True),
        (r"\{1,3\}\cup\{2,4\}", r"\{1,2,3\}", False),
        (r"\{1,3\}\cup(2,4)", r"\{1,3,2,4\}", False),
        ("[0,2]", r"[0,1]\cup[1,2)", False),
        (r"[0,1]\cup[3,4]", r"[3,4]\cup[0,\frac{1}{2}]\cup[0.5,1]", True),
        (r"\mathbb{R}", r"(-\infty,0]\cup(0,\infty)", True),
        (r"\mathbb{R}", r"(-\infty,0)\cup(0,\infty)", False),
        (MANY, MANY.replace(", ", ","), True),
        (MANY, ", ".join(reversed(MANY.split(", "))), True),
        (MANY, MANY.replace("40", "41"), False),
        (f"({MANY})", f"({MANY}.0)", True),
        (f"({MANY})", f"({MANY}.5)", False),
        (MATRIX, MATRIX.replace("pmatrix", "bmatrix"), True),
        (MATRIX, MATRIX.replace("pmatrix", "bmatrix").replace("6&1", "1&6"), False),
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


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"x=y=z=0", r"(0,0,0)", True),
        (r"x=y=z=0", r"x=0, y=0, z=0", True),
        (r"x=y=z=0", r"(0,0)", False),
        (r"(1,1,2)", r"a=b=1, c=2", True),
        (r"(1,1,2)", r"a=c=1, b=2", False),
        (r"a=b=0 or a=b=2", r"(2,2),(0,0)", True),
        (r"a=b=0 or a=b=2", r"(0,2)", False),
        (r"S=x=5", r"5", True),
        (r"(2t,3t), t\in\mathbb{R}", r"(2t,3t)", True),
        (r"(2t,3t), t\in\mathbb{R}", r"(2s,3s), s\in\mathbb{R}", True),
        (r"(2t,3t), t\in\mathbb{R}", r"(3s,2s), s\in\mathbb{R}", False),
        (r"(n,n+1), n\in\mathbb{N}", r"(k,k+1)", True),
        (r"(n,n+1), n\in\mathbb{N}", r"(k,k+2)", False),
        (r"n=2^k, k\ge 1", r"n=2^m \text{ for } m\ge 1", True),
        (r"n=2^k, k\ge 1", r"n=2^m \text{ for } m\ge 0", False),
        (r"n\equiv 1\pmod 4", r"n=4k+1", True),
        (r"n\equiv 1\pmod 4", r"n=4n+1", False),
        (r"n\equiv 1\pmod 4", r"n=4k+3", False),
        (r"x=2 \text{ (double root)}", r"2", True),
        (r"\frac{1}{x-1}, x\ne 1", r"\frac{1}{x-1}", True),
        (r"\frac{1}{x-1}, x\ne 1", r"\frac{1}{x-1}, x\ne 2", False),
    ],
)
def test_names_and_parameters_in_other_forms(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\{(x,y): x^2+y^2=1\}", r"\{(x,y)\in\mathbb{R}^2 \mid x^2+y^2=1\}", True),
        (r"\{(x,y): x^2+y^2=1\}", r"\{(x,y) \mid x^2-y^2=1\}", False),
        (r"\{n\in\mathbb{Z}: n>2\}", r"\{n\in\mathbb{Z}\mid n>2\}", True),
        (r"\{n\in\mathbb{Z}: n>2\}", r"\{n\in\mathbb{R}\mid n>2\}", False),
        (r"\mathbb{Z}_6", r"\mathbb{Z}/2\mathbb{Z} \times \mathbb{Z}_3", True),
        (r"\mathbb{Z}_4", r"\mathbb{Z}_2 \times \mathbb{Z}_2", False),
        (r"\mathbb{Z}^2", r"\mathbb{Z}\oplus\mathbb{Z}", True),
        (r"\mathbb{Z}\oplus(\mathbb{Z}/2)^2", r"\mathbb{Z}_2^2 \times \mathbb{Z}", True),
        (r"\mathbb{Z}\oplus\mathbb{Z}_2", r"\mathbb{Z}\oplus\mathbb{Z}_3", False),
        (r"\text{span}\{(1,1)\}", r"\operatorname{span}\{(1,1)\}", True),
        (r"\sum_{n=0}^{\infty} x^n", r"\sum_{k=0}^{\infty} x^k", True),
        (r"\sum_{n=0}^{\infty} x^n", r"\sum_{k=0}^{\infty} x^n", False),
        (r"\sum_{i=1}^n a_i", r"\sum_{j=1}^n b_j", False),
        (r"4th", r"4^{\text{th}}", True),
        (r"4th", r"fourth", True),
        (r"12", r"12^{\text{th}}", True),
        (r"12", r"12th", False),
        (r"12", r"13^{\text{th}}", False),
        (r"12", r"twelfth", False),
        (r"4th", r"4", True),
        (r"4th", r"fourteenth", False),
        (r"21st", r"twenty-first", True),
        (r"third", r"1/3", False),
        (r"1/3", r"third", False),
        (
            r"\begin{cases}1&n\text{ even}\\0&n\text{ odd}\end{cases}",
            r"\begin{cases}0&\text{if }n\text{ is odd}\\1&\text{for even }n\end{cases}",
            True,
        ),
        (
            r"\begin{cases}1&n\text{ even}\\0&n\text{ odd}\end{cases}",
            r"\begin{cases}1&\text{if }n\text{ is odd}\\0&\text{for even }n\end{cases}",
            False,
        ),
    ],
)
def test_notations_of_sets_groups_and_ordinals(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right
