"""Compares answers that are one of a few: letters of multiple choice, yes and no, directions."""

import re

from sspo_answers.values import tokens_of

_LETTER = re.compile(r"\(?([A-J])\)?")
_SMALL_LETTER = re.compile(r"\(?([a-j])\)?")
_BRACKETED_LETTER = re.compile(r"^\([a-j]\)")
_LETTERS = re.compile(r"(?:\([A-J]\)|[A-J])(?:(?:\s*[,;]\s*|\s+and\s+|\s+)?(?:\([A-J]\)|[A-J]))+")
_WITH_TEXT = re.compile(r"(?:\((?=[A-J]\)))?([A-J])(?:\)|[.:](?=\s))\s*(?=\S)")
_LETTER_BEFORE_TEXT = re.compile(r"(?:\([A-E]\)\s*|[A-E][.:)]\s+)(?=[-0-9\\$])(?!\\(?:times|cdot|pm))")
_NUMBER = re.compile(r"^[-+\\(]?[0-9\\]")
_BEFORE_WORDS = re.compile(r"\(?([A-J])(?:\)|[.:]\s)(?!.*\b[A-J](?:\)|[.:]\s))")  # and no list of all choices
# A letter that is taken back: "A is definitely wrong", "(A) not correct". "(B) False" is a choice and its text.
_REJECTED = re.compile(
    r"\(?[A-Ja-j](?:\)|[.:])?,?\s+(?:(?:is|was)(?:n't|\s+(?:\w+\s+)?(?:not|never|no|false|wrong|incorrect))\b|"
    r"(?:\w+ly\s+)?not\s+(?:correct|right|true|it|this|the\s+(?:right|correct|answer))\b)",
    re.IGNORECASE,
)
# A letter, and beside it others: "(C) or D", "(A), B, C, D", "(C) 5, D 6", "(C) incorrect; D".
_OTHER_LETTER = re.compile(
    r"\(?[A-J][).:]?\s*(?:(?:[,;/|&]|\b(?:or|and|also|maybe|perhaps|possibly|both|not|nor)\b|\(?\b[A-J]\b\)?)\s*)*"
    r"(?<![A-Za-z])[A-J]\)?[.!]?$|\(?[A-J][).:]?\s*or\b|.*[,;]\s*(?:or\s+)?[B-HJ](?:\s+-?[0-9\\$].*)?$",
)
_NAMED_OPPOSITE = re.compile(r"[A-Za-z]+\s*=")  # NO = 5
OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
_ONLY_SOMETIMES = re.compile(r"(?<=[,;:.])\s*not\s+(?:necessarily|always|all|every)\b", re.IGNORECASE)
# Words that take back a yes or no: a "not" in its own clause or at the start of the next, or about the answer itself.
_RETRACTIONS = re.compile(
    r"^no (?:idea|clue|comment|answer|information|way to)\b|^(?:(?! - )[^,;:.])*\bnot\b|(?:[,;:.]| -)\s*not\b|"
    r"\bnot (?:the answer|sure|certain|right|true|correct)\b|\b(?:or|unless)\b|"
    r"^\w+[,;:]?\s+(?:but|only|if|when(?:ever)?|provided|except|as long as|for some|in some|assuming)\b",
    re.IGNORECASE,
)

# Words that exclude the others of their line: 5 km north is not 5 km south.
_CONTRASTS = (
    ("north", "south", "east", "west"),
    ("left", "right"),
    ("up", "down"),
    ("clockwise", "counter-?clockwise|anti-?clockwise"),
    ("increas", "decreas"),
    ("gain|profit", "loss|lost"),
    ("inward", "outward"),
    ("maxim", "minim"),
    ("above", "below"),
    ("convex", "concave"),
    ("positive", "negative"),
    ("odd", "even"),
    ("more", "less|fewer"),
    ("older", "younger"),
    ("before", "after"),
)
_LINE_OF_GROUP = [line for line, words in enumerate(_CONTRASTS) for _ in words]
_WORD_OF_CONTRAST = re.compile(
    rf"\b(?:{'|'.join(f'({word})' for words in _CONTRASTS for word in words)})"
    r"(?:s|es?|ed|ing|wards?|um|al|i[sz]e[sd]?|ern)?\b"
)


def compare_choices(gold: str, answer: str) -> bool | tuple[str, str] | None:
    """Returns whether the letters of two choices are the same, or their texts, which are left to compare.

    Returns:
        None if the gold answer is no choice, or the answer states no letter.
    """
    if _BRACKETED_LETTER.fullmatch(gold):
        gold, answer = gold.upper(), _BRACKETED_LETTER.sub(lambda m: m.group().upper(), answer)
    if _LETTER.fullmatch(gold):
        if _REJECTED.match(answer) or (len(answer) > len("(A)") and _OTHER_LETTER.match(answer)):
            return False
        if choice := _LETTER.fullmatch(answer) or _BEFORE_WORDS.match(answer) or _SMALL_LETTER.fullmatch(answer):
            return choice[1].upper() == gold.strip("()")
    elif (choice := _WITH_TEXT.match(gold)) and gold != answer:
        own = _WITH_TEXT.match(answer) or _LETTER.fullmatch(answer)
        if own and own[1] != choice[1]:
            return False
        rest, gold_rest = answer[own.end() :] if own else answer, gold[choice.end() :]
        if _WITH_TEXT.match(gold_rest):
            return False
        return (gold_rest, rest) if rest else True
    if _NUMBER.search(gold) and not _WITH_TEXT.match(gold) and (own := _LETTER_BEFORE_TEXT.match(answer)):
        return gold, answer[own.end() :]
    if _LETTERS.fullmatch(gold) and _LETTERS.fullmatch(answer):
        letters, others = re.findall("[A-J]", gold), re.findall("[A-J]", answer)
        return letters == others or (letters == sorted(letters) == sorted(others))  # BADC is an order
    return None


def compare_opposites(gold: str, answer: str) -> bool | None:
    """Returns whether an answer is the gold answer's yes, no, true or false; None if that is none of these."""
    word, tokens = gold.lower(), tokens_of(answer)
    if word not in OPPOSITES or not tokens:
        return None
    if _NAMED_OPPOSITE.match(answer):
        return False
    if word in ("no", "false"):
        answer = _ONLY_SOMETIMES.sub("", answer)
    return tokens[0] == word and OPPOSITES[tokens[0]] not in tokens and not _RETRACTIONS.search(answer)


def contradicts(gold: str, answer: str) -> bool:
    """Returns whether both texts have words such as "east" and "west", "increase" and "decrease", and not the same."""
    found = [_words_of_contrast(gold), _words_of_contrast(answer)]
    return any(found[0][contrast] != found[1][contrast] for contrast in found[0].keys() & found[1].keys())


def _words_of_contrast(text: str) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for match in _WORD_OF_CONTRAST.finditer(text.lower()):
        group = match.lastindex or 1
        found.setdefault(_LINE_OF_GROUP[group - 1], set()).add(group)
    return found
