"""Letters, functions without a value, derivatives and products whose order counts, in formulas and beside words."""

import pytest

from sspo_answers.verify import is_equivalent


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\gcd(m,n)", r"1", False),
        (r"\gcd(m,n)", r"\gcd(m,n-1)", False),
        (r"\gcd(m,n)", r"\text{gcd}(n, m)", True),
        (r"2^{\gcd(m,n)}-1", r"1", False),
        (r"2^{\gcd(m,n)}-1", r"-1+2^{\gcd(n,m)}", True),
        (r"m+n-\gcd(m,n)", r"m+n-1", False),
        (r"\operatorname{lcm}(m,n)", r"mn", False),
        (r"\operatorname{lcm}(m,n)", r"\frac{mn}{\gcd(m,n)}", True),
    ],
)
def test_divisors_of_letters(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"N\log n", r"n\log N", False),
        (r"N\log n", r"n\log n", False),
        (r"N\log n", r"\log (n) \cdot N", True),
        (r"\log P", r"\log p", False),
        (r"\max(M,m)", r"\min(M,m)", False),
        (r"\begin{pmatrix}1/2\\3\end{pmatrix}", r"\begin{pmatrix} 0.5 & 3 \end{pmatrix}^T", True),
        (r"n \text{ if } n>N", r"N \text{ if } N>n", False),
        (r"line l", r"line L", False),
        (r"all (x-1)(y+2) values", r"all x-1(y+2) values", False),
        (r"all n such that 2(n+1) is a square", r"all n such that 2n+1 is a square", False),
        (r"all n such that 2(n+1) is a square", r"All n such that 2(n+1) is a square", True),
        (r"\frac{1}{n+1} \text{ for all primes}", r"\frac{1}{n}+1 \text{ for all primes}", False),
        (r"x! for all x", r"x for all x", False),
        (r"isosceles (triangle)", r"Isosceles triangle", True),
    ],
)
def test_letters_of_both_cases(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\phi(mn)", r"\phi(m)n", False),
        (r"\phi(mn)", r"\varphi(nm)", True),
        (r"\varphi(n)+1", r"1+\varphi(n)", True),
        (r"\sigma(n)", r"n\sigma", False),
        (r"\mu(n)", r"|\mu(n)|", False),
        (r"\mu(n)", r"\sqrt{\mu(n)^2}", False),
        (r"f(x)f(y)", r"|f(x)f(y)|", False),
        (r"g(2)", r"|g(2)|", False),
        (r"\sigma(T^4-S^4)", r"\sigma T^4-\sigma S^4", True),
        (r"\Gamma(2n)", r"2\Gamma(n)", False),
        (r"\psi(2)", r"2\psi", False),
        (r"p(x)q(x)", r"p(q(x))x", False),
        (r"p(x)q(x)", r"q(x)p(x)", True),
        (r"J_0(x)", r"xJ_0", False),
        (r"f(x+1)", r"fx+f", False),
        (r"f^{-1}(x)", r"\frac{1}{f(x)}", False),
        (r"\frac{f(x)}{2}", r"\frac{1}{2}f(x)", True),
        (r"E[X^2]", r"E[X]^2", False),
        (r"E[X^2]-E[X]^2", r"E(X^2)-E(X)^2", True),
        (r"P(1+r)^n", r"P\cdot(1+r)^n", True),
        (r"\frac{h(a+b)}{2}", r"\frac{1}{2}(a+b)h", True),
        (r"\operatorname{Var}(2X)", r"2\operatorname{Var}(X)", False),
        (r"\text{Re}(zw)", r"\text{Re}(z)w", False),
        (r"\text{Var}(X)+1", r"1+\operatorname{Var}(X)", True),
        (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}", True),
        (r"a(1-r^n)", r"a-ar^n", True),
        (r"\frac{\partial f}{\partial x}", r"\frac{\partial f}{\partial y}", False),
        (r"\frac{df}{dx}", r"\frac{f}{x}", False),
        (r"\frac{dy}{dx}+y", r"y+\frac{dy}{dx}", True),
    ],
)
def test_functions_without_a_value(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"A^{-1}B", r"BA^{-1}", False),
        (r"PAP^{-1}", r"A", False),
        (r"A^TB + C", r"C + A^{T}B", True),
        (r"\vec{u}\times\vec{v}", r"\vec{v}\times\vec{u}", False),
        (r"\vec{u}\times\vec{v}", r"\vec u \times \vec v", True),
        (r"AB", r"BA", True),
    ],
)
def test_order_of_factors(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right
