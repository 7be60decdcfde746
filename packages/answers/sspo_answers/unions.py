"""Reads sets of numbers with exceptions as unions of intervals: `x \\ne 3`, `|x| > 3`, `(1,3) \\setminus \\{2\\}`."""

import itertools
import math
import re
from dataclasses import dataclass
from fractions import Fraction

from sspo_answers.intervals import read_far, read_inequality
from sspo_answers.quantities.number import read_number

_LONGEST_SET = 300  # characters of a set with exceptions
REALS = r"(-\infty,\infty)"
_ALL_BUT = re.compile(
    r"(?:[A-Za-z]\s*\\(?:ne|notin\s*\\?\{)|(?:\(-\\infty,\\infty\)|\\mathbb\{R\})\s*(?:\\setminus|\\backslash|-)\s*\\?\{|"
    r"all real (?:numbers|[a-z]) except)\s*((?:[^{}]|(?<=\\frac)\{[^{}]*\}\{[^{}]*\})*?)\s*(?:\\?\})?"
)
EXCEPTION = re.compile(r"\\(?:ne|notin)(?![A-Za-z])|\\(?:setminus|backslash)|-\s*\\?\{|\bexcept\b")
# The points that an interval or an inequality leaves out: (1,3) \setminus \{2\}, or 1 < x < 3, x \ne 2.
_PUNCTURED = re.compile(r"([(\[][^()\[\]]*[)\]])\s*\\(?:setminus|backslash)\s*\\?\{([^{}]*?)\\?\}")
_AND_OTHER_THAN = re.compile(r"([(\[][^()\[\]]*[)\]]|[^,]+)\s*(?:,|\band\b)\s*(?:and\s+)?([A-Za-z])\s*\\ne\s*([^<>]*)")
# \mathbb{R} \setminus [1,2]
_OUTSIDE = re.compile(
    r"(?:\(-\\infty,\\infty\)|\\mathbb\{R\})\s*(?:\\setminus|\\backslash|-)\s*([(\[])([^()\[\],]+),([^()\[\],]+)([)\]])"
)
_INTERVAL = re.compile(r"([(\[])\s*([^(),\[\]]+?)\s*,\s*([^(),\[\]]+?)\s*([)\]])")
_LISTED = re.compile(r"\\?\{([^{}|:=<>]+?)\\?\}")
_INFINITE = {r"\infty": math.inf, r"+\infty": math.inf, r"-\infty": -math.inf}
_BOTH_SIGNS = re.compile(r"^\s*\\[pm][mp]\s*(.*)$")  # x \ne \pm 2
_BETWEEN_EXCEPTIONS = re.compile(r"\s*(?:,|\band\b)\s*(?:[A-Za-z]\s*\\ne\s*)?")


def as_union(text: str) -> str:
    """Returns the union of intervals for `x \\ne 3`, `|x| > 3`, or the reals without {3}; any other text as it is."""
    if "|" in text:
        return read_far(text) or text
    if len(text) > _LONGEST_SET:
        return text
    if match := _OUTSIDE.fullmatch(text):
        opening, lower, upper, closing = match.groups()
        left, right = ")" if opening == "[" else "]", "(" if closing == "]" else "["
        return rf"(-\infty,{lower}{left} \cup {right}{upper},\infty)" if "\\infty" not in lower + upper else text
    if match := _ALL_BUT.fullmatch(text):
        interval, points = REALS, match[1]
    elif match := _PUNCTURED.fullmatch(text):
        interval, points = match.groups()
    elif match := _AND_OTHER_THAN.fullmatch(text):
        name, interval = read_inequality(match[1]) or (match[2], match[1].replace(r"\mathbb{R}", REALS))
        if name != match[2]:
            return text
        points = match[3]
    else:
        return text
    numbers = [read_number(item) for item in _BETWEEN_EXCEPTIONS.split(_BOTH_SIGNS.sub(r"\1, -\1", points))]
    values = sorted({number.value for number in numbers if number is not None})
    ends = interval[1:-1].split(",")
    if len(values) != len(numbers) or len(ends) != 2 or not _lie_between(ends, values):
        return text
    ends[1:1] = map(str, values)
    return r" \cup ".join(
        f"{interval[0] if left == ends[0] else '('}{left},{right}{interval[-1] if right == ends[-1] else ')'}"
        for left, right in itertools.pairwise(ends)
    )


def join_intervals(text: str) -> str:
    """Returns a union of intervals in which those that touch or overlap are joined; any other text as it is.

    It is for intervals whose ends are numbers or infinite: `[0,1] \\cup (1,2]` becomes `[0,2]`.
    """
    parts = [part.strip() for part in text.split(r"\cup")]
    if len(parts) == 1 or len(text) > _LONGEST_SET:
        return text
    read = [_read_interval(part) for part in parts]
    known = sorted((interval for interval in read if interval is not None), key=lambda interval: interval.begins)
    if len(known) < len(parts):
        return text
    joined = known[:1]
    for interval in known[1:]:
        last = joined[-1]
        if interval.begins > last.ends:
            joined.append(interval)
        elif interval.ends > last.ends:
            joined[-1] = _Interval(last.begins, interval.ends, last.left, interval.right)
    return r" \cup ".join(f"{each.left},{each.right}" for each in joined) if len(joined) < len(parts) else text


def join_sets(text: str) -> str:
    """Returns one set in braces for a union of such sets, `\\{1,3\\} \\cup \\{2,4\\}`; any other text as it is."""
    parts = [_LISTED.fullmatch(part.strip()) for part in text.split(r"\cup")]
    members = [part[1] for part in parts if part is not None]
    return rf"\{{{','.join(members)}\}}" if 1 < len(parts) == len(members) else text


@dataclass(frozen=True)
class _Interval:
    """An interval, with its ends as they are written, and as pairs that tell whether it meets the one before.

    A closed beginning is (low, 0) and an open one (low, 1); a closed end is (high, 1) and an open one (high, 0). An
    interval touches or overlaps the one before if its beginning is not above that one's end.
    """

    begins: tuple[Fraction | float, int]
    ends: tuple[Fraction | float, int]
    left: str
    right: str


def _read_interval(text: str) -> _Interval | None:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        return None
    low, high = (_INFINITE.get(end) or ((number := read_number(end)) and number.value) for end in match.group(2, 3))
    if low is None or high is None or not low < high:
        return None
    begins, ends = (low, int(match[1] == "(")), (high, int(match[4] == "]"))
    return _Interval(begins, ends, f"{match[1]}{match[2]}", f"{match[3]}{match[4]}")


def _lie_between(ends: list[str], values: list[Fraction]) -> bool:
    """Returns whether values lie inside of an interval; not if an end is no number and not infinite."""
    if (lower := ends[0].strip()) != r"-\infty" and not ((low := read_number(lower)) and low.value < values[0]):
        return False
    return (upper := ends[1].strip()) == r"\infty" or bool((high := read_number(upper)) and high.value > values[-1])
