"""Splits an answer that states one value twice, such as "1/4 or 25%", and finds the line that concludes an answer."""

import re

_ABOUT = r"(?P<about>(?:approximately|approx\.?|about|roughly|around)(?![A-Za-z])|\\approx(?![A-Za-z]))?\s*"
_ASIDE = r"(?:or|i\.e\.|that\s+is|equivalently|which\s+(?:is|equals)|equals)(?:\s+equal\s+to)?(?![A-Za-z]),?"
_AFTER_WORD = re.compile(rf"\s*,?\s+(?:or,?\s+)?{_ASIDE}\s*{_ABOUT}")
_ROUNDED = re.compile(r"\s*,?\s+(?P<about>approximately|about|roughly)\s+")
_IN_BRACKETS = re.compile(rf"^(?P<value>.*\S)\s+\((?P<aside>(?:or,?\s+)?{_ASIDE}|=)?\s*{_ABOUT}(?P<other>[^()]+)\)$")
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_CONCLUSION = re.compile(
    r"(?:[-*#_>\s]|\b(?:so|thus|hence|therefore)\b,?)*(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|total)\b"
    r"(?:\s+is\b|[\s*_]*[:=])",
    re.IGNORECASE,
)
_ANNOUNCED = re.compile(r"\banswers?\b", re.IGNORECASE)


def split_restatement(answer: str) -> tuple[str, str] | None:
    """Returns the two notations of `1/4 or 25%` and `5/2 (2.5)`; None for any other answer.

    The second is "\\approx 3.46" for `2\\sqrt{3} (about 3.46)`. Whether the two are one value is not examined.

    Args:
        answer: a text that `clean` returned.
    """
    if match := _IN_BRACKETS.match(answer):
        is_product = not (match["aside"] or match["about"]) and _VARIABLE.search(match["other"])  # n (n + 1)
        return None if is_product else _pair(match["value"], match["about"], match["other"])
    for form in (_AFTER_WORD, _ROUNDED):
        found = list(form.finditer(answer))
        if len(found) == 1 and found[0].start() and answer[found[0].end() :]:
            return _pair(answer[: found[0].start()], found[0]["about"], answer[found[0].end() :])
    return None


def _pair(value: str, about: str | None, other: str) -> tuple[str, str] | None:
    value, other = value.strip(" ,"), other.strip()
    return (value, rf"\approx {other}" if about else other) if value and other and value != other else None


def take_conclusion(text: str) -> str:
    """Returns the last line of a text if it alone announces the answer, as "Answer: 42" does; the whole text if not."""
    before, _, last = text.rpartition("\n")
    return last if before and _CONCLUSION.match(last) and not _ANNOUNCED.search(before) else text
