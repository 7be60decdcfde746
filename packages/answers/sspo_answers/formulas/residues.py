"""Compares rational numbers that are too large to be computed, such as 2024!/2^{1012}, by their remainders.

Two rational numbers with the same remainders by two primes of a hundred bits are the same, but for a chance of 10^-60.
"""

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from sspo_answers.formulas.formula import Tree

_PRIMES = (2**127 - 1, 2**107 - 1)
_LARGEST_FACTORIAL = 10_000


class UnknownError(ArithmeticError):
    """A formula has a part that is no rational number, or a remainder of zero where it would divide."""


def is_same_number(gold: Tree, answer: Tree, exact: Callable[[Tree], Any]) -> bool:
    """Returns whether two formulas without variables have one value; not if either has a root or a function.

    Args:
        gold: the gold answer's formula.
        answer: the answer's formula.
        exact: computes an exponent or the operand of a factorial.
    """
    try:
        return all(_remainder(gold, prime, exact) == _remainder(answer, prime, exact) for prime in _PRIMES)
    except (ArithmeticError, ValueError):
        return False


def _remainder(tree: Tree, prime: int, exact: Callable[[Tree], Any]) -> int:
    if isinstance(tree, Fraction):
        return tree.numerator * _inverse(tree.denominator, prime) % prime
    name, *parts = tree
    if name in ("power", "factorial", "binomial"):
        numbers = [_integer(exact(part)) for part in (parts[1:] if name == "power" else parts)]
        if name == "factorial":
            return _factorial(numbers[0], prime)
        if name == "binomial":
            top, bottom = numbers
            below = _factorial(bottom, prime) * _factorial(top - bottom, prime)
            return _factorial(top, prime) * _inverse(below, prime) % prime
        base = _remainder(parts[0], prime, exact)
        return pow(_inverse(base, prime) if numbers[0] <= 0 else base, abs(numbers[0]), prime)
    values = [_remainder(part, prime, exact) for part in parts] if name in _OPERATIONS else []
    if not values:
        raise UnknownError
    return _OPERATIONS[name](prime, *values) % prime


def _integer(value: Any) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise UnknownError
    return value.numerator


def _inverse(value: int, prime: int) -> int:
    if value % prime == 0:
        raise UnknownError
    return pow(value, -1, prime)


@functools.lru_cache(maxsize=256)
def _factorial(number: int, prime: int) -> int:
    if not 0 <= number <= _LARGEST_FACTORIAL:
        raise UnknownError
    product = 1
    for factor in range(2, number + 1):
        product = product * factor % prime
    return product


_OPERATIONS: dict[str, Callable[..., int]] = {
    "add": lambda prime, left, right: left + right,
    "multiply": lambda prime, left, right: left * right,
    "divide": lambda prime, left, right: left * _inverse(right, prime),
    "negate": lambda prime, operand: -operand,
}
