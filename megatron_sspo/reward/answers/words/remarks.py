"""Drops what an answer remarks about its value: where it is attained, why it is right, that it is the only one."""

import re

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
_KIND = (
    r"(?:the\s+)?(?:(?:only|unique|one|minimum|maximum|minimal|maximal|smallest|largest|least|greatest|exact|final|total|"
    r"simplified|reduced|real|positive|possible|integer)\s+){0,4}"
    r"(?:only|unique|minimum|maximum|min|max|smallest|largest|exact|final|total|simplified|solution|value|answer|root|number)"
    r"|(?:an?\s+)?(?:double|triple|repeated)\s+root|(?:with\s+)?multiplicity\s+[2-9]"
)
_IN_BRACKETS = re.compile(rf"\s*\(\s*(?:{_CONDITION}|{_REASON}|{_KIND})\s*\)$", re.IGNORECASE)
# "7 when x = 1" may have other values elsewhere, if no comma sets the condition apart.
_AFTER_VALUE = re.compile(
    rf"(?<=[^\s,])(?:\s*,\s*{_CONDITION}|\s+(?:at|(?:attained|achieved|reached)\s+(?:at|when|for))\s+{_PLACES})$",
    re.IGNORECASE,
)
# A clause after a comma, in which no number may stand: it might be the answer.
_CLAUSE = re.compile(
    rf"\s*,\s+(?:which|who)\s+(?:is|are|was|were|has|have)\b(?:(?![0-9\\=]){_UNCHANGED}){{0,200}}$", re.IGNORECASE
)
# "2x = 6, so x = 3": what stands before the last step is no part of the answer.
_STEPS = re.compile(
    rf"^[^;?]*=[^;?]*?(?:\\(?:implies|[Ll]?ong[Rr]ightarrow|[Rr]ightarrow)(?![A-Za-z])|=>|,?\s(?:so|hence|thus|therefore)\s)"
    rf"\s*(?={_SYMBOL}(?:\s*[-+]\s*{_SYMBOL}){{0,3}}\s*=)"
)
_WORD_OF_STEP = re.compile(r"[Rr]ightarrow|\\implies|=>|\b(?:so|hence|thus|therefore)\b")
_WORD_OF_REMARK = re.compile(r"\b(?:at|when|for|because|since|as|which|who)\b|\(", re.IGNORECASE)


def drop_steps(gold: str, answer: str) -> str:
    """Returns the conclusion `x = 3` of an answer such as `2x = 6 \\implies x = 3`; an answer without steps as it is.

    Args:
        gold: the gold answer, a text that `clean` returned; if it has steps itself, the answer is not changed.
        answer: the answer, alike.
    """
    if not _WORD_OF_STEP.search(answer) or _WORD_OF_STEP.search(gold):
        return answer
    return _STEPS.sub("", answer)


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
            return answer[: match.start()]
    return answer
