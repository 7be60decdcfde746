"""Reads inequalities as intervals: `0 < x \\le 1` is (0,1], `|x - 3| < 2` is (1,5); and `c > b > a` as an order."""

import re

from megatron_sspo.reward.answers.names import SYMBOL, compact, in_one_spelling, letters_of
from megatron_sspo.reward.answers.quantities.number import read_number

_GREATER = {">": "<", r"\ge": r"\le"}
_ABSOLUTE = re.compile(r"\|([A-Za-z])(?:([-+])([0-9.]+))?\|")  # |x-3|
_RELATION = re.compile(r"(<|>|\\(?:le|ge)(?![A-Za-z]))")

_SHARED = re.compile(  # a > b and b > c
    r"(?<=[A-Za-z])(\s*(?:[<>]|\\[lg]e(?![A-Za-z]))\s*([A-Za-z]))\s*(?:,|\band\b)\s*\2(?=\s*(?:[<>]|\\[lg]e(?![A-Za-z])))"
)


def read_inequality(text: str) -> tuple[str, str] | None:
    """Returns the name and the interval of `0 < x \\le 1`, here x and (0,1]; None for any other text."""
    if text.count(" and ") > 1:
        return None
    if " and " in text:
        return _read_both(*text.split(" and ", 1))
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) not in (3, 5) or any(mark in text for mark in ",;=") or not all(parts):
        return None
    values, signs = parts[::2], parts[1::2]
    if any(sign in _GREATER for sign in signs):
        if not all(sign in _GREATER for sign in signs):
            return None
        values, signs = values[::-1], [_GREATER[sign] for sign in reversed(signs)]
    place = 1 if len(values) == 3 else int(bool(SYMBOL.fullmatch(compact(values[1]))))
    name = values.pop(place)
    if "|" in name:
        return _read_distance(name, values[0], signs[0]) if place == 0 and len(values) == 1 else None
    if not SYMBOL.fullmatch(compact(name)) or any(letters_of(value) for value in values):
        return None
    opening = "[" if signs[0] != "<" else "("
    closing = "]" if signs[-1] != "<" else ")"
    if len(values) == 2:
        interval = f"{opening}{values[0]},{values[1]}{closing}"
    else:
        interval = rf"{opening}{values[0]},\infty)" if place else rf"(-\infty,{values[0]}{closing}"
    return in_one_spelling(name), interval


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
