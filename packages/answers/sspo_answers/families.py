"""Compares families of numbers with an integer parameter: `\\frac{\\pi}{2} + k\\pi` is `k\\pi - \\frac{\\pi}{2}`.

The values of a formula for all integers k, also of one such as (-1)^k \\frac{\\pi}{6} + k\\pi, whose steps repeat in
twos, are residue classes. Two families are the same if they are the same classes by a common modulus.
"""

import math
import re
from collections.abc import Callable
from fractions import Fraction

from sspo_answers.answer import split_equation, split_list
from sspo_answers.names import INTEGER_PARAMETER, letters_of

_TOLERANCE = Fraction(1, 10**25)
_LONGEST = 200  # characters
_MOST_PARTS = 6
_LETTERS = frozenset("klmn")  # of a parameter that is not declared
_MOST_CLASSES = 60
_LARGEST_RATIO = 60  # between two steps
_DEGREES = re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
_PI = re.compile(r"\\pi(?![A-Za-z])")

Class = tuple[Fraction, Fraction]  # a number, and the step to the next ones


def is_family(gold: str, answer: str) -> bool:
    """Returns whether one of two texts declares an integer parameter."""
    return any("=" in text or "\\in" in text or "integer" in text for text in (gold, answer)) and bool(
        INTEGER_PARAMETER.search(gold) or INTEGER_PARAMETER.search(answer)
    )


def is_same_family(gold: str, answer: str, value_of: Callable[[str], Fraction | None]) -> bool:
    """Returns whether two texts state the same numbers for all integers k, which one of them declares.

    Args:
        gold: the gold answer, a text that `clean` returned.
        answer: the answer, alike.
        value_of: computes a formula without variables.
    """
    in_degrees = [bool(_DEGREES.search(text)) for text in (gold, answer)]
    if any(len(text) > _LONGEST for text in (gold, answer)):
        return False
    if in_degrees[0] != in_degrees[1] and not _PI.search(answer if in_degrees[0] else gold):
        return False
    classes = [_read(text, value_of) for text in (gold, answer)]
    if classes[0] is None or classes[1] is None:
        return False
    names = [_names(text) for text in (gold, answer)]
    return len(names[0] | names[1]) <= 1 and _are_same(classes[0], classes[1])  # (2k, k) is not (k, 2k)


def _names(text: str) -> set[str]:
    parameter = INTEGER_PARAMETER.search(text)
    items = split_list(text[: parameter.start()] if parameter else text, thousands=False)[1]
    return {name for item in items for name in split_equation(item)[:-1]}


def _read(text: str, value_of: Callable[[str], Fraction | None]) -> list[Class] | None:
    """Returns the residue classes of a family, those of degrees in radians; None if the text is anything else."""
    parameter = INTEGER_PARAMETER.search(text)
    brackets, parts = split_list(text[: parameter.start()] if parameter else text, thousands=False)
    if parameter:  # x = \pi + 2k\pi, k \in \mathbb{Z} or x = 2k\pi, k \in \mathbb{Z}
        declared = INTEGER_PARAMETER.fullmatch
        parts = [part for part in parts if not ((own := declared(part)) and own.groups() == parameter.groups())]
    formulas = [split_equation(part)[-1] for part in parts]
    letters = [parameter[1] or parameter[2]] if parameter else sorted(_LETTERS & letters_of(" ".join(formulas)))
    if len(letters) != 1 or brackets not in ("", "{}") or not 0 < len(parts) <= _MOST_PARTS:
        return None
    found: list[Class] = []
    for formula in formulas:
        if _DEGREES.search(formula):
            formula = rf"({_DEGREES.sub('', formula)})\cdot\frac{{\pi}}{{180}}"
        values = [_value_at(formula, letters[0], number, value_of) for number in range(5)]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        step = known[2] - known[0]
        if _is_zero(step) or not _is_zero(known[3] - known[1] - step) or not _is_zero(known[4] - known[2] - step):
            return None
        found += [(known[0], abs(step)), (known[1], abs(step))]
    return found


def _value_at(formula: str, letter: str, number: int, value_of: Callable[[str], Fraction | None]) -> Fraction | None:
    parameter = re.compile(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])")
    return value_of(parameter.sub(f"({number})", formula)) if parameter.search(formula) else None


def _are_same(golds: list[Class], answers: list[Class]) -> bool:
    unit = golds[0][1]
    ratios = [Fraction(step / unit).limit_denominator(_LARGEST_RATIO) for _, step in (*golds, *answers)]
    steps = [step for _, step in (*golds, *answers)]
    if any(not ratio or not _is_zero(ratio * unit - step) for ratio, step in zip(ratios, steps, strict=True)):
        return False
    modulus = Fraction(
        math.lcm(*(ratio.numerator for ratio in ratios)), math.gcd(*(ratio.denominator for ratio in ratios))
    )
    if sum(modulus / ratio for ratio in ratios) > _MOST_CLASSES:
        return False
    sides = [
        [start + turn * step for start, step in classes for turn in range(round(modulus * unit / step))]
        for classes in (golds, answers)
    ]
    return all(
        any(_is_multiple(value - other, modulus * unit) for other in others)
        for values, others in (sides, sides[::-1])
        for value in values
    )


def _is_multiple(value: Fraction, modulus: Fraction) -> bool:
    return _is_zero(value - round(value / modulus) * modulus)


def _is_zero(value: Fraction) -> bool:
    return abs(value) < _TOLERANCE
