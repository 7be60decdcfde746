"""Reads a function of several cases, such as `\\begin{cases} x & x > 0 \\\\ -x & x \\le 0 \\end{cases}`."""

import re

_CASES = re.compile(
    r"(?:(?P<name>[A-Za-z](?:_\{?[A-Za-z]\}?|\([a-z]\))?)\s*=\s*)?\\begin\s*\{cases\}(?P<rows>.*)\\end\s*\{cases\}",
    re.DOTALL,
)
_OTHERWISE = re.compile(r"(?:otherwise|else|elsewhere)", re.IGNORECASE)
_CONDITION = re.compile(r"^(?:if|when|for|where|as)\b\s*", re.IGNORECASE)


def read_cases(text: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Returns the function's name, empty if there is none, and each value with its condition; None for other texts."""
    match = _CASES.fullmatch(text)
    rows = [row.strip(" &\n").split("&") for row in match["rows"].split("\\\\") if row.strip()] if match else []
    if match is None or any(len(row) != 2 for row in rows):
        return None
    pairs = [(row[0].strip(" ,;:\n"), _CONDITION.sub("", row[1].strip(" ,;.\n"))) for row in rows]
    return match["name"] or "", pairs


def is_other_case(condition: str) -> bool:
    """Returns whether a condition is "otherwise", which stands for the case that the others leave."""
    return _OTHERWISE.fullmatch(condition) is not None
