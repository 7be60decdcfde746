"""Reads what LaTeX writes in rows: matrices, also in brackets as in `[[1,2],[3,4]]`, and functions of several cases.

A function of several cases is such as `\\begin{cases} x & x > 0 \\\\ -x & x \\le 0 \\end{cases}`.
"""

import re

from sspo_answers.answer import split_equation, split_list
from sspo_answers.names import read_assignments
from sspo_answers.notations.sets import respell_whole
from sspo_answers.quantities.number import read_number

_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\s*\{([pbB]?matrix|smallmatrix|array)\}(?:\s*\{[^{}]*\})?(.*)\\end\s*\{\1\}\s*[)\]]?", re.DOTALL
)
_END_OF_ROW = re.compile(r"\\\\(?:\s*\[[^\]]*\])?|\\cr(?![A-Za-z])")

# (x, y) = (1, 2)
_COORDINATE = r"\s*(?:[A-Za-z]|\\[a-z]+)(?:_(?:[A-Za-z0-9]|\{[^{}]*\}))?\s*"
_NAME = re.compile(_COORDINATE)
_COORDINATES = re.compile(rf"^\(({_COORDINATE}(?:,{_COORDINATE})+)\)\s*=\s*(?=\()")
_WHOLE_IN_BRACKETS = re.compile(r"^\s*(?:\(|\\\{)([^(){}]*)(?:\)|\\\})\s*$")

_SET_OF_ONE = re.compile(r"\\?\{\s*(\([^()]*\))\s*\\?\}")

_COEFFICIENT = r"-?(?:[0-9]*(?:\.[0-9]+)?|\\frac\{[0-9]+\}\{[0-9]+\}|[0-9]*\\sqrt\{[0-9]+\})"
_COMPONENTS = re.compile(
    rf"(?:({_COEFFICIENT})i)?(?:((?:^|\+|(?=-)){_COEFFICIENT})j)?(?:((?:^|\+|(?=-)){_COEFFICIENT})k)?"
)

# \frac{1}{\sqrt{14}}(1, 2, 3)
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_ROOT = rf"(?:{_NUMBER}\s*)?\\sqrt\s*(?:\{{{_NUMBER}\}}|[0-9])"
_PART = rf"\{{\s*(?:{_NUMBER}|{_ROOT})\s*\}}"
_MULTIPLE = re.compile(
    rf"(?P<sign>-?)\s*(?P<factor>{_NUMBER}(?:\s*/\s*{_NUMBER})?|{_ROOT}|\\frac\s*{_PART}\s*{_PART}|(?<=-))\s*(?:\\cdot\s*)?(?=\()"
)

_CASES = re.compile(
    r"(?:(?P<name>[A-Za-z](?:_\{?[A-Za-z]\}?|\([a-z]\))?)\s*=\s*)?\\begin\s*\{cases\}(?P<rows>.*)\\end\s*\{cases\}",
    re.DOTALL,
)
_OTHERWISE = re.compile(r"(?:otherwise|else|elsewhere)", re.IGNORECASE)
_CONDITION = re.compile(r"^(?:if|when|for|where|as)\b\s*", re.IGNORECASE)


def read_matrix(text: str) -> list[list[str]] | None:
    """Returns the cells of a matrix, row by row; None if the text is anything else, such as a product of matrices."""
    if match := _MATRIX.fullmatch(text):
        if "\\begin" in match[2]:
            return None
        rows = [[cell.strip() for cell in row.split("&")] for row in _END_OF_ROW.split(match[2]) if row.strip()]
    elif text.startswith("[["):
        brackets, items = split_list(text, thousands=False)
        found = [split_list(item, thousands=False) for item in items]
        if brackets != "[]" or any(inner != "[]" for inner, _ in found):
            return None
        rows = [cells for _, cells in found]
    else:
        return None
    return rows if rows and len({len(row) for row in rows}) == 1 else None


def read_coordinates(text: str) -> dict[str, str] | None:
    """Returns the values of two names or more, None without names; letters are in the order of the alphabet."""
    if "=" not in text:
        return None
    if match := _COORDINATES.match(text):
        brackets, items = split_list(text[match.end() :], thousands=False)
        names = [name.strip() for name in match[1].split(",")]
        if brackets != "()" or len(items) != len(names) or len(set(names)) != len(names):
            return None
        found = dict(zip(names, items, strict=True))
    else:
        brackets, items = split_list(text, thousands=False)
        named = (
            read_assignments(items) if brackets in ("", "()", "{}") and len(items) > 1 and " or " not in text else None
        )
        if named is None:
            return None
        found = named
    return dict(sorted(found.items())) if all(len(name) == 1 for name in found) else found


def spread_chains(gold: str, answer: str) -> tuple[str, str]:
    """Returns both texts with `x = 0, y = 0` for `x = y = 0`, if each then has a value for each of the same names.

    A side may also be a point of as many coordinates.
    """
    spread = _spread(gold), _spread(answer)
    if spread == (gold, answer):
        return gold, answer
    counts = [_count_coordinates(text) for text in spread]
    return spread if counts[0] == counts[1] > 1 else (gold, answer)


def _spread(text: str) -> str:
    if text.count("=") < 2 or " or " in text:
        return text
    brackets, items = split_list(text, thousands=False)
    found: list[str] = []
    for item in items:
        *names, value = split_equation(item)
        is_chain = len(names) > 1 and all(map(_NAME.fullmatch, names)) and not _NAME.fullmatch(value)
        found += [f"{name} = {value}" for name in names] if is_chain else [item]
    return ", ".join(found) if brackets in ("", "{}") and len(found) > len(items) else text


def _count_coordinates(text: str) -> int:
    named = read_coordinates(text)
    if named is not None:
        return len(named)
    brackets, items = split_list(text, thousands=False)
    return len(items) if brackets == "()" else 0


def as_points(text: str) -> str:
    """Returns the points (1,2), (2,1) for `x = 1, y = 2 or x = 2, y = 1`; any other text as it is."""
    if " or " not in text or "=" not in text:
        return text
    found = [read_coordinates(_spread(_WHOLE_IN_BRACKETS.sub(r"\1", part))) for part in text.split(" or ")]
    if not all(found) or len({tuple(named or ()) for named in found}) > 1:
        return text
    return ", ".join(f"({','.join(named.values())})" for named in found if named)


def read_components(text: str) -> str | None:
    """Returns the point (2,-1,3) for the vector 2i - j + 3k; None for any other text."""
    match = _COMPONENTS.fullmatch(re.sub(r"\s+", "", text))
    if match is None or (match[3] is None and None in match.group(1, 2)):
        return None
    parts = ["0" if part is None else part.removeprefix("+") for part in match.groups()[: 3 if match[3] else 2]]
    return f"({','.join(part + '1' if part in ('', '-') else part for part in parts)})"


def with_named_point(text: str, other: str) -> str:
    """Returns `v = (2,3)` for `v = 2i + 3j` if the other text has a bracket or a column; any other text as it is."""
    name, equals, value = text.partition("=")
    point = read_components(value) if equals and ("(" in other or "[" in other or "\\begin" in other) else None
    return f"{name.strip()}={point}" if point else text


def as_point(text: str, other: str) -> str:
    """Returns the point of a set of one point, if the other text is one: (1,2) for `\\{(1,2)\\}`."""
    match = _SET_OF_ONE.fullmatch(text)
    is_point = match and other.startswith("(") and len(split_list(match[1], thousands=False)[1]) > 1
    return match[1] if match and is_point else text


def multiply_point(text: str) -> str:
    """Returns the point (4,6) for its multiple `2(2,3)`, whose factor has no letters; any other text as it is."""
    match = _MULTIPLE.match(text)
    brackets, items = split_list(text[match.end() :], thousands=False) if match else ("", [])
    if match is None or brackets != "()" or len(items) < 2:
        return text
    sign, factor = match["sign"], match["factor"] or "1"
    return f"({','.join(_product(sign, factor, item) for item in items)})"


def _product(sign: str, factor: str, item: str) -> str:
    number, value = read_number(factor), read_number(item)
    if number and value and not (value.percent or value.unit):
        return str(number.value * value.value * (-1 if sign else 1))
    if value and value.value in (-1, 0, 1):
        is_negative = bool(sign) != (value.value < 0)
        return f"{'-' if is_negative else ''}{factor}" if value.value else "0"
    return f"{sign}({factor})({item})"


def as_list(matrix: list[list[str]]) -> list[str]:
    """Returns the cells of a matrix of one row or one column, which is a vector; an empty list for any other matrix."""
    if len(matrix) > 1 and len(matrix[0]) > 1:
        return []
    return [cell for row in matrix for cell in row]


def read_cases(text: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Returns the function's name, empty if there is none, and each value with its condition; None for other texts."""
    match = _CASES.fullmatch(text)
    rows = [row.strip(" &\n").split("&") for row in match["rows"].split("\\\\") if row.strip()] if match else []
    if match is None or any(len(row) != 2 for row in rows):
        return None
    pairs = [(row[0].strip(" ,;:\n"), respell_whole(_CONDITION.sub("", row[1].strip(" ,;.\n")))) for row in rows]
    return match["name"] or "", pairs


def is_other_case(condition: str) -> bool:
    """Returns whether a condition is "otherwise", which stands for the case that the others leave."""
    return _OTHERWISE.fullmatch(condition) is not None
