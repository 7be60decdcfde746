"""Compares formulas by their values, exactly for rational numbers, to 40 of 60 digits for others.

Two formulas with variables are the same if their values are, at four points and at four far from zero. A number that
would be too large is an error, and not computed.
"""

import functools
import math
import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from sspo_answers.formula import Tree, UnreadError, parse_formula

Value = Any  # a Fraction, or mpmath's real or complex number

_DIGITS = 60
_TOLERANCE = 10**-40  # of the larger of two values
_LARGEST_BITS = 20_000  # of a rational number
_LARGEST_EXPONENT = 10_000  # of a real number
_LARGEST_LOGARITHM = 900  # of a real number
_LARGEST_ANGLE = 1e10
_SMALL_ANGLE = 10**-5
_ROUNDED_ZERO = 10**-45  # what 60 digits make of \\cos\\frac{\\pi}{2}
_LARGEST_EQUAL = 1e28  # above it, 40 digits do not show whether 1 was added
_MOST_CANCELLED = 10**-15  # of a sum: what remains of 60 digits is enough
_LARGEST_FACTORIAL = 1000
_LARGEST_GAMMA = 100
_POINTS = 4
_FAR_SIZES = (11, -11, 1009, -1009)  # beyond these, an absolute value or the root of a square may change its sign
_ARITHMETIC = re.compile(r"(?:[-+*/().0-9{} ]|\\(?:times|cdot|div|frac)(?![A-Za-z]))+")


class TooLargeError(ArithmeticError):
    """A number of the formula is too large to be computed."""


class UncertainError(ArithmeticError):
    """The value cannot be computed with enough digits."""


def is_same_formula(gold: str, answer: str) -> bool | None:
    """Returns whether two formulas have the same values; None if that cannot be said here.

    A number that is too large to be computed is not the same as any other.
    """
    try:
        gold_tree, answer_tree = _parse(gold), parse_formula(answer)
    except (UnreadError, RecursionError):
        return None
    import mpmath

    if _names(answer_tree) - _names(gold_tree):
        return False  # 5x/x, and 2 + y - y, still have to be computed
    names = sorted(_names(gold_tree))
    verdicts: list[tuple[bool, bool]] = []
    with mpmath.workdps(_DIGITS):
        if names and not _agree_far_from_zero(gold_tree, answer_tree, names):
            return False
        for point in _points(names):
            try:
                left = _Evaluation(point).value(gold_tree)
            except ZeroDivisionError:
                if not names:
                    return None
                continue
            except (ArithmeticError, ValueError) as error:
                return False if isinstance(error, TooLargeError) and not names else None
            try:
                right = _Evaluation(point).value(answer_tree)
                verdicts.append(_compare_values(left, right))
            except (ZeroDivisionError, TooLargeError):
                if not _names(answer_tree):
                    return False
            except (ArithmeticError, ValueError):
                return None
    real = [same for same, is_real in verdicts if is_real] or [same for same, _ in verdicts]
    if False in real:
        return False
    return True if len(real) >= (2 if names else 1) else None


def _agree_far_from_zero(gold: Tree, answer: Tree, names: list[str]) -> bool:
    """Returns whether no far point shows two different real values: |x - 2| and 2 - x are the same near zero."""
    for point in _far_points(names):
        try:
            same, is_real = _compare_values(_Evaluation(point).value(gold), _Evaluation(point).value(answer))
        except (ArithmeticError, ValueError):
            continue
        if is_real and not same:
            return False
    return True


def is_same_equation(gold: tuple[str, str], answer: tuple[str, str]) -> bool | None:
    """Returns whether two equations, given by their sides, are one times a number; None if uncertain."""
    try:
        trees = [("add", parse_formula(left), ("negate", parse_formula(right))) for left, right in (gold, answer)]
    except (UnreadError, RecursionError):
        return None
    import mpmath

    names = sorted(_names(trees[0]))
    if names != sorted(_names(trees[1])):
        return None
    if not names:
        return bool(is_same_formula(gold[0], answer[0]) and is_same_formula(gold[1], answer[1]))
    ratios: list[Value] = []
    with mpmath.workdps(_DIGITS):
        for point in _points(names):
            try:
                values = [_to_float(_Evaluation(point).value(tree)) for tree in trees]
                ratios.append(values[0] / values[1])
            except (ArithmeticError, ValueError):
                return None
        return all(abs(ratio - ratios[0]) <= abs(ratio) * _TOLERANCE for ratio in ratios)


def value_of(text: str) -> Fraction | None:
    """Returns the value of a formula without variables, exact or to 60 digits; None if it has none, or is not real."""
    import mpmath

    try:
        tree = _parse(text)
        if _names(tree):
            return None
        with mpmath.workdps(_DIGITS):
            value = _Evaluation({}).value(tree)
            if isinstance(value, Fraction):
                return value
            return _to_fraction(value) if _is_real(value) else None
    except (UnreadError, RecursionError, ArithmeticError, ValueError):
        return None


def arithmetic_value(text: str) -> Fraction | None:
    """Returns the value of a short formula of digits, signs and fractions; None for any other text.

    It takes microseconds, so that the trainer's process can use it without a deadline.
    """
    if len(text) > 100 or not _ARITHMETIC.fullmatch(text):
        return None
    try:
        value = _Evaluation({}).value(parse_formula(text))
    except (UnreadError, ArithmeticError):
        return None
    return value


@functools.lru_cache(maxsize=1024)  # the responses of a group share their gold answer
def _parse(text: str) -> Tree:
    return parse_formula(text)


def _names(tree: Tree) -> set[str]:
    if isinstance(tree, Fraction):
        return set()
    if tree[0] == "variable":
        return {tree[1]}
    return {name for part in tree[1:] if not isinstance(part, str) for name in _names(part)}


def _points(names: list[str]) -> Iterator[dict[str, Value]]:
    """Yields values of the variables: positive ones first, then of both signs. Without variables, one empty point."""
    for number in range(_POINTS if names else 1):
        point: dict[str, Value] = {}
        for name in names:
            draw = random.Random(f"{name} {number}")
            size = _draw_size(draw)
            point[name] = -size if number == 3 or (number == 2 and draw.random() < 0.5) else size
        yield point


def _draw_size(draw: random.Random) -> Value:
    import mpmath

    return mpmath.mpf(3) / 10 + mpmath.mpf(draw.getrandbits(150)) / 2**150 * 8 / 5


def _far_points(names: list[str]) -> Iterator[dict[str, Value]]:
    """Yields points of two sizes, each with all variables positive, and then negative."""
    for size in _FAR_SIZES:
        yield {name: Fraction(random.Random(f"{name} {size}").randint(701, 1301) * size, 1000) for name in names}


def _compare_values(left: Value, right: Value) -> tuple[bool, bool]:
    """Returns whether two values are equal, and whether one of them is real."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right, True
    is_real = _is_real(left), _is_real(right)
    if is_real[0] != is_real[1]:
        return False, True
    left, right = _to_float(left), _to_float(right)
    size = max(abs(left), abs(right))
    is_same = bool(abs(left - right) <= size * _TOLERANCE)
    if is_same and size > _LARGEST_EQUAL:
        raise UncertainError
    return is_same, is_real[0]


def _is_real(value: Value) -> bool:
    return isinstance(value, Fraction) or bool(abs(value.imag) <= _TOLERANCE * max(1, abs(value.real)))


def _to_float(value: Value) -> Value:
    import mpmath

    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _to_fraction(value: Value) -> Fraction:
    sign, mantissa, exponent, _ = value.real._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


class _Evaluation:
    """Computes the value of a tree at one point."""

    def __init__(self, point: dict[str, Value]) -> None:
        self._point = point

    def value(self, tree: Tree) -> Value:
        if isinstance(tree, Fraction):
            return tree
        if tree[0] == "variable":
            return self._point[tree[1]]
        if tree[0] == "constant":
            return _constant(tree[1])
        operands = [part if isinstance(part, str) else self.value(part) for part in tree[1:]]
        return _bounded(_OPERATIONS[tree[0]](*operands))


def _constant(name: str) -> Value:
    import mpmath

    return {"pi": +mpmath.pi, "e": +mpmath.e, "i": mpmath.mpc(0, 1)}[name]


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _LARGEST_BITS:
            raise TooLargeError
        return value
    import mpmath

    if not abs(mpmath.mag(value)) <= 2 * _LARGEST_LOGARITHM and value != 0:  # NaN as well
        raise UncertainError
    return value


def _add(left: Value, right: Value) -> Value:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left + right
    left, right = _to_float(left), _to_float(right)
    remainder, size = abs(left + right), max(abs(left), abs(right))
    if remainder <= 10**-45 * size:  # what cancellation leaves of a zero
        return Fraction(0)
    if remainder <= _MOST_CANCELLED * size:
        raise UncertainError
    return left + right


def _arithmetic(operation: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    def apply(left: Value, right: Value) -> Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return operation(left, right)
        return operation(_to_float(left), _to_float(right))

    return apply


def _power(base: Value, exponent: Value) -> Value:
    import mpmath

    if isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            return _integer_power(base, exponent.numerator)
        if exponent.denominator % 2 and _is_negative(base):  # the real root, as \sqrt[3]{-8} = -2
            size = mpmath.power(-_to_float(base), _to_float(exponent))
            return -size if exponent.numerator % 2 else size
    if base == 0:
        raise UncertainError
    base, exponent = _to_float(base), _to_float(exponent)
    if abs(exponent) * abs(mpmath.log(base)) > _LARGEST_LOGARITHM:
        raise TooLargeError
    return mpmath.power(base, exponent)


def _integer_power(base: Value, exponent: int) -> Value:
    import mpmath

    if base == exponent == 0:
        raise ZeroDivisionError
    if isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits > 1 and bits * abs(exponent) > _LARGEST_BITS:
            raise TooLargeError
        return base**exponent
    if abs(exponent) > _LARGEST_EXPONENT:
        raise TooLargeError
    return mpmath.power(base, exponent)


def _root(radicand: Value, degree: Value) -> Value:
    if degree == 0:
        raise ZeroDivisionError
    return _power(radicand, 1 / degree)


def _is_negative(value: Value) -> bool:
    return value < 0 if isinstance(value, Fraction) else _is_real(value) and value.real < 0


def _factorial(value: Value) -> Value:
    import mpmath

    if not isinstance(value, Fraction):
        if abs(value) > _LARGEST_GAMMA:
            raise UncertainError
        return mpmath.gamma(value + 1)
    if value.denominator != 1 or value < 0:
        raise UncertainError
    if value > _LARGEST_FACTORIAL:
        raise TooLargeError
    return Fraction(math.factorial(int(value)))


def _binomial(top: Value, bottom: Value) -> Value:
    if not all(isinstance(n, Fraction) and n.denominator == 1 and 0 <= n <= _LARGEST_FACTORIAL for n in (top, bottom)):
        top, bottom = _to_float(top), _to_float(bottom)
        if max(abs(top), abs(bottom)) > _LARGEST_GAMMA:
            raise TooLargeError
        import mpmath

        return mpmath.binomial(top, bottom)
    return Fraction(math.comb(int(top), int(bottom)))


def _log(base: Value, operand: Value) -> Value:
    return _call("ln", operand) / _call("ln", base)


def _call(name: str, operand: Value) -> Value:
    import mpmath

    if name in ("abs", "floor", "ceil"):
        if name == "abs":
            return abs(operand)
        if not isinstance(operand, Fraction):
            raise UncertainError
        return Fraction(operand.__floor__() if name == "floor" else operand.__ceil__())
    operand = _to_float(operand)
    if name in ("ln", "lg") and operand == 0:
        raise ZeroDivisionError
    if name not in ("ln", "lg") and abs(operand) > (
        _LARGEST_LOGARITHM if name in ("exp", "sinh", "cosh", "tanh") else _LARGEST_ANGLE
    ):
        raise UncertainError
    value = _FUNCTIONS[name](mpmath, operand)
    if name in _OF_ANGLES and abs(operand) > _SMALL_ANGLE:
        if abs(value) < _ROUNDED_ZERO:
            return Fraction(0)
        if abs(value) * _ROUNDED_ZERO > 1:
            raise ZeroDivisionError
    return value


_OF_ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc")
_FUNCTIONS: dict[str, Callable[[Any, Value], Value]] = {
    "sin": lambda m, x: m.sin(x),
    "cos": lambda m, x: m.cos(x),
    "tan": lambda m, x: m.tan(x),
    "cot": lambda m, x: m.cot(x),
    "sec": lambda m, x: m.sec(x),
    "csc": lambda m, x: m.csc(x),
    "cis": lambda m, x: m.expj(x),
    "arcsin": lambda m, x: m.asin(x),
    "arccos": lambda m, x: m.acos(x),
    "arctan": lambda m, x: m.atan(x),
    "sinh": lambda m, x: m.sinh(x),
    "cosh": lambda m, x: m.cosh(x),
    "tanh": lambda m, x: m.tanh(x),
    "ln": lambda m, x: m.log(x),
    "lg": lambda m, x: m.log10(x),
    "exp": lambda m, x: m.exp(x),
}

_OPERATIONS: dict[str, Callable[..., Value]] = {
    "add": _add,
    "multiply": _arithmetic(lambda left, right: left * right),
    "divide": _arithmetic(lambda left, right: left / right),
    "negate": lambda operand: -operand,
    "power": _power,
    "root": _root,
    "factorial": _factorial,
    "binomial": _binomial,
    "log": _log,
    "call": _call,
}
