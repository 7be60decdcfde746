"""Compares the letters of multiple choice, alone or before the text of the choice."""

import re

_LETTER = re.compile(r"\(?([A-J])\)?")
_SMALL_LETTER = re.compile(r"\(?([a-j])\)?")
_LETTERS = re.compile(r"(?:\([A-J]\)|[A-J])(?:(?:\s*[,;]\s*|\s+and\s+|\s+)?(?:\([A-J]\)|[A-J]))+")
_WITH_TEXT = re.compile(r"(?:\((?=[A-J]\)))?([A-J])(?:\)|[.:](?=\s))\s*(?=\S)")
_BEFORE_WORDS = re.compile(r"\(?([A-J])(?:\)(?!.*\b[A-J]\))|[.:]\s(?!.*\b[A-J]\b))")
_REJECTED = re.compile(
    r"\(?[A-Ja-j](?:\)|[.:])?\s+(?:is|was)(?:n't|\s+(?:not|never|no|false|wrong|incorrect))\b", re.IGNORECASE
)


def compare_choices(gold: str, answer: str) -> bool | tuple[str, str] | None:
    """Returns whether the letters of two choices are the same, or their texts, which are left to compare.

    Returns:
        None if the gold answer is no choice, or the answer states no letter.
    """
    if _LETTER.fullmatch(gold):
        if _REJECTED.match(answer):
            return False
        if choice := _BEFORE_WORDS.match(answer) or _SMALL_LETTER.fullmatch(answer):
            return choice[1].upper() == gold.strip("()")
    elif (choice := _WITH_TEXT.match(gold)) and gold != answer:
        own = _WITH_TEXT.match(answer) or _LETTER.fullmatch(answer)
        if own and own[1] != choice[1]:
            return False
        rest, gold_rest = answer[own.end() :] if own else answer, gold[choice.end() :]
        if _WITH_TEXT.match(gold_rest):
            return False
        return (gold_rest, rest) if rest else True
    if _LETTERS.fullmatch(gold) and _LETTERS.fullmatch(answer):
        return sorted(re.findall("[A-J]", gold)) == sorted(re.findall("[A-J]", answer))
    return None
