"""Drops what an answer remarks about its value: where it is attained, why it is right, that it is the only one."""

import re

from sspo_answers.words.spelled import NUMERAL, respell_numerals

# Words with which a remark may state another answer, or take the answer back.
_CHANGING = (
    "or|nor|not|never|no|but|maybe|perhaps|possibly|probably|also|wrong|incorrect|false|invalid|unless|if|else|otherwise|"
    "except|about|almost|nearly|approximately|roughly|around|half|twice|double[ds]?|triple[ds]?|squared?|cubed?|times|"
    "more|less|fewer|than|minus|plus|too|over|under|off|short|negative|rounded|rounds|guess|question|other|another|"
    "answers?|candidates?|options?|possib(?:le|ility)|close|closest|near|one|most|least|"
    "contradict(?:s|ion)|impossible|extraneous|rejected|discarded|undefined|divided|multiplied|instead"
)
_UNCHANGED = rf"(?:(?!\b(?:{_CHANGING})\b|n't|[;?])[^()])"
# "18 at x = 3", "-1, when x = 2 and y = 1", "18 (attained at x = 3)"
_VALUE = r"[-+]?\s*(?:[0-9.]+|\\(?:frac|sqrt)\s*\{[^{}]*\}(?:\s*\{[^{}]*\})?|\\pi)(?:\s*/\s*[0-9]+)?"
_SYMBOL = r"[A-Za-z](?:_(?:[0-9A-Za-z]|\{[0-9A-Za-z]\}))?"
_PLACE = rf"{_SYMBOL}(?:\s*=\s*{_SYMBOL}){{0,3}}\s*=\s*{_VALUE}"
_PLACES = rf"{_PLACE}(?:\s*(?:,|\band\b)\s*{_PLACE}){{0,3}}"
_CONDITION = rf"(?:(?:which\s+is\s+)?(?:attained|achieved|reached|occurring)\s+)?(?:at|when|for)\s+{_PLACES}"
_REASON = rf"(?:because|since|as)\s{_UNCHANGED}*"
_OF_ROOT = r"(?:an?\s+)?(?:double|triple|repeated)\s+root|(?:with\s+)?multiplicity\s+[2-9]"
_KIND = (
    r"(?:the\s+)?(?:(?:only|unique|one|minimum|maximum|minimal|maximal|smallest|largest|least|greatest|exact|final|total|"
    r"simplified|reduced|real|positive|possible|integer)\s+){0,4}"
    r"(?:only|unique|minimum|maximum|min|max|smallest|largest|exact|final|total|simplified|solution|value|answer|root|number)"
    rf"|{_OF_ROOT}"
)
_MULTIPLICITY = re.compile(rf"\s*\(\s*(?:{_OF_ROOT})\s*\)$", re.IGNORECASE)
_IN_BRACKETS = re.compile(
    rf"\s*\(\s*(?:{_CONDITION}|(?P<rejected>{_PLACES})\s+(?:is|are)\s+(?:rejected|discarded|extraneous|invalid)|"
    rf"rounded\s+to\s+(?:the\s+nearest\s+[a-z]+|[a-z0-9]+\s+(?:decimals?|(?:decimal|significant)\s+(?:place|figure|digit)s?))|"
    rf"{_REASON}|verified|checked|(?:by|using|from)\s[A-Za-z' -]+|(?:(?:which|this|it)\s+is\s+)?{_KIND})\s*\)$",
    re.IGNORECASE,
)
# "7 when x = 1" may have other values elsewhere, if no comma sets the condition apart.
_AFTER_VALUE = re.compile(
    rf"(?<=[^\s,])(?:\s*,\s*{_CONDITION}|\s+(?:at|(?:attained|achieved|reached)\s+(?:at|when|for))\s+{_PLACES})$",
    re.IGNORECASE,
)
# "\frac{x+1}{x-1}, x \ne 1" after a formula of x: where it has no value. A set without its exceptions is another.
_DOMAIN = re.compile(
    rf"(?:\s*,\s*|\s+|\s*(?=\())(?:\(\s*)?(?:(?:for|where|with|if|provided(?:\s+that)?)\s+)?(?:all\s+)?(?P<letter>[A-Za-z])\s*\\ne\s*"
    rf"(?:\\pm\s*)?{_VALUE}(?:\s*(?:,|\band\b)\s*(?:(?P=letter)\s*\\ne\s*)?{_VALUE}){{0,3}}\s*\)?$"
)
# "2^n - 1 for all n \ge 1", "for positive integers n", after a formula of n
_INDICES = re.compile(
    r"(?:\s*,\s*|\s+|\s*(?=\())(?:\(\s*)?(?:for|where|with)?\s*(?:all|any|every|each)?\s*(?:positive\s+integers?\s+)?(?P<letter>[kmn])"
    r"(?:\s*\\ge\s*[01]|\s*\\in\s*\\mathbb\{[NZ]\}(?:[\^_](?:[*+]|\{[*+]\}))?|(?<=integer\s[kmn])|(?<=integers\s[kmn]))\s*\)?$"
)
_CONCLUSION = re.compile(
    r"\b(?:so|then|thus|hence|therefore|giv(?:es|ing)|total|(?:al)?together|answer|result|finally)\b", re.IGNORECASE
)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# "3/4 of the cake", "20% of the class", "half of them", but not "half of the number"
_SHARE = re.compile(
    r"(.{1,40}?)\s+of\s+(?:them|it|(?:the|her|his|their|all(?:\s+the)?)"
    rf"(?:\s+(?!(?:{_CHANGING}|{NUMERAL}|and|thirds?|quarters?|numbers?|values?|results?|sum|product|difference|square|root|"
    r"others?|above|correct)\b)[a-z]+){1,4})",
    re.IGNORECASE,
)
_FRACTION = re.compile(
    r"[0-9]{1,9}\s*/\s*[0-9]{1,9}|\\frac\{[0-9]{1,9}\}\{[0-9]{1,9}\}|[0-9.]{1,12}\s*(?:\\?%|percent)"
)
_RELATION = re.compile(r"[=<>:,;|\[\]]|\\(?:le|ge|ne|cup|cap|in|setminus|approx)(?![A-Za-z])")
# A clause after a comma, in which no number may stand: it might be the answer.
_CLAUSE = re.compile(
    rf"\s*,\s+(?:(?:which|who)\s+(?:is|are|was|were|has|have|satisf(?:y|ies)|works)|as\s+(?:required|desired|claimed|expected|needed|requested))\b(?:(?![0-9\\=]){_UNCHANGED}){{0,200}}$",
    re.IGNORECASE,
)
# "2x = 6, so x = 3": what stands before the last step is no part of the answer.
_STEPS = re.compile(
    rf"^[^;?]*=[^;?]*?(?:\\(?:implies|[Ll]?ong[Rr]ightarrow|[Rr]ightarrow)(?![A-Za-z])|=>|,?\s(?:so|hence|thus|therefore)\s)"
    rf"\s*(?={_SYMBOL}(?:\s*[-+]\s*{_SYMBOL}){{0,3}}\s*=)"
)
_WORD_OF_STEP = re.compile(r"[Rr]ightarrow|\\implies|=>|\b(?:so|hence|thus|therefore)\b")
_WORD_OF_REMARK = re.compile(r"\b(?:at|when|for|because|since|as|which|who)\b|\(", re.IGNORECASE)


def concludes_otherwise(value: str, reason: str) -> bool:
    """Returns whether a reason ends with a number that is not in the value: "7, because half is 7 and the total 14"."""
    numbers = _NUMBER.findall(reason)
    return bool(numbers and numbers[-1] not in _NUMBER.findall(value) and _CONCLUSION.search(reason))


def drop_steps(gold: str, answer: str) -> str:
    """Returns the conclusion `x = 3` of an answer such as `2x = 6 \\implies x = 3`; an answer without steps as it is.

    Args:
        gold: the gold answer, a text that `clean` returned; if it has steps itself, the answer is not changed.
        answer: the answer, alike.
    """
    if not _WORD_OF_STEP.search(answer) or _WORD_OF_STEP.search(gold):
        return answer
    return _STEPS.sub("", answer)


def drop_domain(gold: str, answer: str) -> str:
    """Returns the formula of `x + 1, x \\ne 1` or `2^n, n \\ge 1`; any other answer, or one of several, as it is.

    Args:
        gold: the gold answer, a text that `clean` returned; if it is no formula of x, the answer is not changed.
        answer: the answer, alike.
    """
    match = _DOMAIN.search(answer) if "\\ne" in answer else _INDICES.search(answer)
    if match is None or _RELATION.search(gold) or _RELATION.search(answer[: match.start()]):
        return answer
    letter = re.compile(rf"(?<![A-Za-z\\]){match['letter']}(?![A-Za-z])")
    return answer[: match.start()] if letter.search(gold) and letter.search(answer[: match.start()]) else answer


def drop_multiplicity(gold: str) -> str:
    """Returns the root of a gold answer such as `x = 2 (double root)`; any other gold answer as it is."""
    return _MULTIPLICITY.sub("", gold) if gold.endswith(")") else gold


def drop_whole(gold: str, answer: str) -> str:
    """Returns the share of "3/4 of the cake" and "20% of the class"; any other answer as it is.

    Args:
        gold: the gold answer, a text that `clean` returned; if it says of what, the answer is not changed.
        answer: the answer, alike.
    """
    match = _SHARE.fullmatch(answer) if " of " in answer and " of " not in gold else None
    share = respell_numerals(match[1]) if match else ""
    return share if _FRACTION.fullmatch(share) else answer


def drop_remark(gold: str, answer: str) -> str:
    """Returns an answer without a remark after its value, which has to be the whole rest of the text.

    If the gold answer has such words itself, the answer is returned as it is: its condition is then a part of it.

    Args:
        gold: the gold answer, a text that `clean` returned.
        answer: the answer, alike.
    """
    if not _WORD_OF_REMARK.search(answer) or re.search(r"\b(?:at|when|for|because|since|as|which|who)\b", gold):
        return answer
    for form in (_IN_BRACKETS, _AFTER_VALUE, _CLAUSE):
        if (match := form.search(answer)) and match.start() > 0:
            value = answer[: match.start()]
            rejected = match.groupdict().get("rejected") or ""
            if rejected and rejected.rpartition("=")[2].strip() == value.rpartition("=")[2].strip():
                return answer
            return answer if concludes_otherwise(value, match.group()) else value
    return answer
