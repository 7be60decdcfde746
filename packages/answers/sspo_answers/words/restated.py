"""Splits an answer that states one value twice, such as "1/4 or 25%", and finds the line that concludes an answer."""

import re

_ABOUT = r"(?P<about>(?:approximately|approx\.?|about|roughly|around)(?![A-Za-z])|\\approx(?![A-Za-z]))?\s*"
_ASIDE = r"(?:or|i\.e\.|that\s+is|equivalently|which\s+(?:is|equals)|equals)(?:\s+equal\s+to)?(?![A-Za-z]),?"
_AFTER_WORD = re.compile(rf"\s*,?\s+(?:or,?\s+)?{_ASIDE}\s*{_ABOUT}")
_ROUNDED = re.compile(r"\s*,?\s+(?P<about>approximately|about|roughly)\s+")
_IN_BRACKETS = re.compile(rf"^(?P<value>.*\S)\s+\((?P<aside>(?:or,?\s+)?{_ASIDE}|=)?\s*{_ABOUT}(?P<other>[^()]+)\)$")
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_SO = r"(?:(?:so|thus|hence|therefore|consequently|\\therefore)(?![A-Za-z])|∴|所以|因此|综上(?:所述)?)[,，]?"
_ANNOUNCEMENT = re.compile(
    rf"(?:[-*#_>\s]|{_SO})*(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|total)\b(?:\s+is\b|[\s*_]*[:=])",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(rf"{_SO}|in\s+(?:total|all|conclusion)\b|altogether\b|finally\b", re.IGNORECASE)
_ANNOUNCED = re.compile(r"\banswers?\b", re.IGNORECASE)
_END_OF_SENTENCE = re.compile(r"\n+|(?<=[^\s.])\.\s+(?=[A-Z$*])|。\s*(?=\S)")
# "Since x + 3 = 15, we get x = 12": the last clause, unless a condition or a choice is before it
_END_OF_CLAUSE = re.compile(
    rf"(?:,\s+|，)(?:and\s+)?(?:(?:{_SO}\s+)?we\s+(?:get|have|obtain|find)\s+|(?={_SO}|the\s+(?:final\s+)?answer\s+is\b))",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:if|unless|suppose|supposing|assum(?:e|ing)|when|without|^with|ignor(?:e|ing)|otherwise|n?or|n?either|not|but|case|except|"
    r"would|could|might|perhaps|maybe|between|about|around|approximately|roughly|close|guess|answers?)\b",
    re.IGNORECASE,
)
_STATEMENT = re.compile(r"=|(?<![A-Za-z\\])[A-Za-z]{2}|[\u4e00-\u9fff]")  # "18, so x = 3" are two values
_WORDS_OF_ANSWER = ("yes", "no", "true", "false")
# "Answer: 12\n\nExplanation: ...", and "The answer is 12. We multiply 3 by 4."
_EXPLANATION = re.compile(
    r"\n[-*#_ \t]*(?P<label>explanation|reason(?:ing)?|justification|notes?|proof|check|verification|confidence)"
    r"[*_\s]*:|"
    r"(?<=[^\s.:])(?:\.\s|\n)\s*(?:we|this|that|since|because|to|here|first|let|by|using)\b",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:not?|n?or|but|if|wrong|incorrect|actually|wait|instead|mistake|also|answers?)\b|n't", re.I
)


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
    """Returns the end of a text if it alone concludes, as "Answer: 42" and "So x = 42" do; the whole text if not.

    The end is the last line, the last sentence, or the last clause of a sentence without conditions.
    """
    taken_back = max((match.end() for match in _TAKEN_BACK.finditer(text)), default=0)
    explanation = _EXPLANATION.search(text, taken_back)
    if explanation and explanation.start() and (explanation["label"] or _ANNOUNCEMENT.match(text)):
        text = text[: explanation.start()].rstrip()
    start = max((match.end() for match in _END_OF_SENTENCE.finditer(text)), default=0)
    before = text[:start]
    is_conclusion = _CONCLUSION.match(text, start) and _STATEMENT.search(before)
    is_announcement = _ANNOUNCEMENT.match(text, start) and not _is_other_answer(before, text[start:])
    if start and (is_conclusion or is_announcement) and not _ANNOUNCED.search(before):
        text = text[start:]
    clauses = list(_END_OF_CLAUSE.finditer(text))
    before = text[: clauses[-1].start()] if clauses else ""
    return text[clauses[-1].end() :] if _STATEMENT.search(before) and not _CONDITION.search(before) else text


def _is_other_answer(before: str, announcement: str) -> bool:
    """Returns whether the text before an announcement is an answer itself, and another one: 41 in "41. Answer: 42"."""
    bare = before.strip(" \n.*$")
    if not bare or (_STATEMENT.search(bare) and bare.lower() not in _WORDS_OF_ANSWER):
        return False
    return not re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", announcement, re.IGNORECASE)
