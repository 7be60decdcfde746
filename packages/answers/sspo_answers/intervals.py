"""Reads inequalities as intervals: `0 < x \\le 1` is (0,1], `|x - 3| < 2` is (1,5); and `c > b > a` as an order."""

import re
from collections import Counter

from sspo_answers.names import SYMBOL, compact, in_one_spelling, letters_of
from sspo_answers.quantities.number import read_number

_GREATER = {">": "<", r"\ge": r"\le"}
_ABSOLUTE = re.compile(r"\|([A-Za-z])(?:([-+])([0-9.]+))?\|")  # |x-3|
_RELATION = re.compile(r"(<|>|\\(?:le|ge)(?![A-Za-z]))")

_WORD = re.compile(r"(?<![\\A-Za-z])[a-z]{3,}")  # "not all x"
_REAL = re.compile(r"\s*[,;(]\s*([A-Za-z])\s*\\in\s*\\mathbb\{R\}\s*\)?$")  # x \in \mathbb{R} at the end
_BETWEEN = re.compile(r"\b(?:or|and)\b|[,;]|\\(?:cup|cap|l?or|l?and|vee|wedge)(?![A-Za-z])")  # between inequalities
_INTERVAL = re.compile(r"[(\[].*[)\]]$")
_SHARED = re.compile(  # a > b and b > c
    r"(?<=[A-Za-z])(\s*(?:[<>]|\\[lg]e(?![A-Za-z]))\s*([A-Za-z]))\s*(?:,|\band\b)\s*\2(?=\s*(?:[<>]|\\[lg]e(?![A-Za-z])))"
)


def read_inequality(text: str, other: str = "") -> tuple[str, str] | None:
    """Returns the name and the interval of `0 < x \\le 1`, here x and (0,1]; None for any other text.

    Args:
        text: a text that `clean` returned.
        other: the text to which it is compared. If that is an interval, the ends may have its letters, and the name may
            be a quantity of several letters, such as a + b or |PF|.
    """
    interval = other if _INTERVAL.match(other) and not _RELATION.search(other) else None
    if len(both := re.split(r"\s+and\s+|\s*,\s*", text)) > 1:
        return _read_both(*both) if len(both) == 2 else None
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) not in (3, 5) or any(mark in text for mark in ",;=") or not all(parts):
        return None
    values, signs = parts[::2], parts[1::2]
    if any(sign in _GREATER for sign in signs):
        if not all(sign in _GREATER for sign in signs):
            return None
        values, signs = values[::-1], [_GREATER[sign] for sign in reversed(signs)]
    known = letters_of(interval or "")
    place = 1 if len(values) == 3 else int(bool(_is_name(values[1], interval) and not letters_of(values[1]) & known))
    name = values.pop(place)
    if _ABSOLUTE.fullmatch(compact(name)):
        return _read_distance(name, values[0], signs[0]) if place == 0 and len(values) == 1 else None
    if not _is_name(name, interval) or letters_of(name) & known or any(letters_of(value) - known for value in values):
        return None
    opening = "[" if signs[0] != "<" else "("
    closing = "]" if signs[-1] != "<" else ")"
    if len(values) == 2:
        found = f"{opening}{values[0]},{values[1]}{closing}"
    else:
        found = rf"{opening}{values[0]},\infty)" if place else rf"(-\infty,{values[0]}{closing}"
    return in_one_spelling(name), found


def _is_name(text: str, interval: str | None) -> bool:
    if SYMBOL.fullmatch(compact(text)):
        return True
    return interval is not None and len(letters_of(text)) > 1 and not _WORD.search(text)


def is_task(gold: str, answer: str) -> bool:
    """Returns whether an answer is an inequality that is still to be solved, and the gold answer is an interval."""
    if not _RELATION.search(answer) or _is_solved(answer):
        return False
    return not _RELATION.search(gold) or (_is_solved(gold) and len(letters_of(gold)) == 1)


def _is_solved(text: str) -> bool:
    """Returns whether each inequality of a text states the values of one name, or its distance from a number.

    `x < 2 or x > 3` and `|x - 1| < 2` are solved, `x^2 - 5x + 6 > 0` and `2x > 4` are not.
    """
    clauses = [_RELATION.split(clause)[::2] for clause in _BETWEEN.split(text) if _RELATION.search(clause)]
    return bool(clauses) and all(map(_has_bare_name, clauses))


def _has_bare_name(parts: list[str]) -> bool:
    """Returns whether one side of an inequality is a name or a distance, whose letters no other side has."""
    letters = list(map(letters_of, parts))
    count = Counter(letter for found in letters for letter in found)
    return any(
        (SYMBOL.fullmatch(compact(part)) or _ABSOLUTE.fullmatch(compact(part)))
        and all(count[letter] == 1 for letter in found)
        for part, found in zip(parts, letters, strict=True)
    )


def read_order(text: str) -> tuple[list[str], list[str]] | None:
    """Returns the values and the signs of `c > b > a`, from the smallest value on; None unless it has two or more."""
    parts = [part.strip() for part in _RELATION.split(text)]
    values, signs = parts[::2], parts[1::2]
    if len(values) < 2 or not all(values) or len({sign in _GREATER for sign in signs}) != 1:
        return None
    if signs[0] in _GREATER:
        return values[::-1], [_GREATER[sign] for sign in reversed(signs)]
    return values, signs


def join_orders(text: str) -> str:
    """Returns the order `a > b > c` for `a > b and b > c`; any other text as it is."""
    return _SHARED.sub(r"\1", text) if _RELATION.search(text) else text


def drop_reals(text: str) -> str:
    """Returns the inequality of `x > 3, x \\in \\mathbb{R}`, whose letter is real anyway; any other text as it is."""
    match = _REAL.search(text)
    is_about_letter = match and _RELATION.search(text) and match[1] in letters_of(text[: match.start()])
    return text[: match.start()] if match and is_about_letter else text


def read_far(text: str) -> str | None:
    """Returns the union of the two intervals of `|x - 3| > 2`; None for any other text."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) != 3 or parts[1] not in _GREATER:
        return None
    found = _read_distance(parts[0], parts[2], _GREATER[parts[1]])
    if found is None:
        return None
    is_open = parts[1] == ">"
    left, right = found[1][1:-1].split(",")
    return rf"(-\infty,{left}{')' if is_open else ']'} \cup {'(' if is_open else '['}{right},\infty)"


def _read_distance(absolute: str, distance: str, sign: str) -> tuple[str, str] | None:
    """Returns the name and the interval of `|x - 3| < 2`; None if one of the two numbers is none, or not positive."""
    match, number = _ABSOLUTE.fullmatch(compact(absolute)), read_number(distance)
    if not match or not number or number.value <= 0 or number.unit or number.percent:
        return None
    center = read_number(match[3] or "0")
    if center is None:
        return None
    middle = -center.value if match[2] == "+" else center.value
    ends = f"{middle - number.value},{middle + number.value}"
    return match[1], f"({ends})" if sign == "<" else f"[{ends}]"


def _read_both(first: str, second: str) -> tuple[str, str] | None:
    """Returns the name and the interval of `x > 0 and x \\le 1`; None for any other two texts."""
    found = read_inequality(first), read_inequality(second)
    if not found[0] or not found[1] or found[0][0] != found[1][0]:
        return None
    lower, upper = sorted((found[0][1], found[1][1]), key=lambda interval: interval.startswith(r"(-\infty,"))
    if not lower.endswith(r",\infty)") or not upper.startswith(r"(-\infty,"):
        return None
    return found[0][0], lower.removesuffix(r"\infty)") + upper.removeprefix(r"(-\infty,")
