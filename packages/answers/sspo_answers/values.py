"""Compares two single values: numbers with units, ratios, words, formulas."""

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Protocol

from sspo_answers.evaluate import arithmetic_value
from sspo_answers.formula import FUNCTIONS
from sspo_answers.number import Number, read_number, split_unit

LONGEST_LIST = 30  # items of a set that are written in another way, since each may have to be compared with each

Verdict = bool | None  # None: undecided, because it needs the comparison of two formulas

_TOLERANCE = Fraction(1, 10**30)
RELATION = re.compile(r"[<>]|\\(?:le|ge|ne)(?![A-Za-z])")
_BASE = re.compile(r"[0-9]\s*_")
_COMMAND = re.compile(r"\\(?:begin|end|operatorname\*?)\s*\{[A-Za-z*]+\}|\\[A-Za-z]+")
_FUNCTIONS = re.compile(
    "(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|min|max|gcd|lcm|mod|det|dim|ker|deg|arg", re.IGNORECASE
)
_PRIMED = re.compile(r"[A-Za-z](?:_[a-z0-9])?'+|[0-9]['\"]")
_RATIO = re.compile(r"([^:A-Za-z]*[^:A-Za-z\s])\s*:\s*([^:A-Za-z\s][^:A-Za-z]*)")
# A formula that still has to be computed.
_TASK = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim)(?![A-Za-z])|\\begin\{[vV]matrix\}")
_ARITHMETIC = re.compile(
    r"\+|[0-9A-Za-z)}!]\s*-|\\(?:times|cdot|div)(?![A-Za-z])|\*|(?<=[0-9])\s*x\s*(?=[0-9])|[0-9)]\s*\(|\\(?:gcd|lcm|min|max|infty)|dx\b"
)
_WORD = re.compile("[a-z]+")
_LETTER = re.compile(r"\\([A-Za-z]+)|([A-Za-z])")
_NO_LETTERS = FUNCTIONS | set(
    _WORD.findall(
        "frac sqrt pi cdot times div left right le ge ne infty circ log binom dots pm approx in cup mathbb begin end "
        "sum prod int lim"
    )
)
_NUMERAL = re.compile(r"(?:(?:US)?\$|[€£¥])?\s*-?[0-9]")
# Words before a number that change its meaning, so that it is not the answer.
HEDGES = re.compile(
    r"\b(?:not?|never|n?either|n?or|between|than|least|most|about|approximately|roughly|almost|nearly|around|over|under|"
    r"above|below|twice|double|triple|half|minus|plus|times|divided|if|unless|maybe|perhaps|probably|possibly|might|"
    r"could|except|but|without|wrong|incorrect|square|cube|root|reciprocal|opposite|before|after|unequal|exceeds?|such|near|increased|decreased|hundred|divisor|"
    r"factor|successor|discard|beginning|ending|up to|to the|cannot|[a-z]+n't)\b"
)


class Formulas(Protocol):
    """Compares formulas."""

    def is_same(self, gold: str, answer: str) -> bool:
        """Returns whether two cleaned texts that are not numbers or words are the same."""
        ...

    def value_of(self, text: str) -> Fraction | None:
        """Returns the value of a formula, exact or to at least 30 digits; None if it has none."""
        ...


def compare_values(gold: str, answer: str, formulas: Formulas | None) -> Verdict:
    """Returns whether an answer, which is no list or equation, is the gold value in a final form."""
    if normalize(gold) == normalize(answer):
        return True
    gold_number = read_number(gold)
    answer_number = read_number(answer) or (_stated_number(answer) if gold_number else None)
    if gold_number and answer_number:
        return gold_number.equals(answer_number)
    if _BASE.search(gold) or _BASE.search(answer):
        return False  # 16_8 is neither 16 nor 16_7; its other spellings were compared before
    if sorted(_PRIMED.findall(gold)) != sorted(_PRIMED.findall(answer)):  # f'(x) is not f(x)
        return False
    gold, answer = (_RATIO.sub(r"\\frac{\1}{\2}", text) if _RATIO.fullmatch(text) else text for text in (gold, answer))
    if ":" in gold or ":" in answer:
        return tokens_of(gold) == tokens_of(answer)
    (bare_gold, gold_unit), (bare_answer, answer_unit) = split_unit(gold), split_unit(answer)
    if _has_words(bare_gold) or _has_words(bare_answer):
        return tokens_of(gold) == tokens_of(answer)
    if gold_number and (_ARITHMETIC.search(answer) or RELATION.search(answer)):
        return False
    if _TASK.search(answer) and not _TASK.search(gold):
        return False
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return False
    if formulas is None:
        return None
    for number, text in ((gold_number, bare_answer), (answer_number, bare_gold)):
        if number and number.places and not number.percent:
            value = formulas.value_of(text)
            if value is not None:
                return _is_equal(number.value, value) or number.states(value)
    return formulas.is_same(bare_gold, bare_answer)


def is_same_or_rounded(gold: str, side: str, formulas: Formulas | None) -> Verdict:
    """Returns whether a side of a chain has the value of the gold answer, or one of the two is the other rounded.

    A side need not be in a final form: it may be the task, as in `16 - 3 - 4 = 9`.
    """
    numbers = [number and number.as_share() for number in (read_number(gold), read_number(side))]
    values: list[Fraction | None] = []
    for number, text in zip(numbers, (gold, side), strict=True):
        bare = re.sub(r"\$|(?<=[0-9]),(?=[0-9]{3})|(?<=[0-9])(?:/?\s*[A-Za-z]{2,})+", "", text)
        bare = re.sub(r"(?<=[0-9)])\s*x\s*(?=[0-9(])", "*", bare)
        value = number.value if number else arithmetic_value(bare)
        values.append(value if value is not None or formulas is None else formulas.value_of(split_unit(text)[0]))
    left, right = values
    if left is None or right is None:
        return formulas.is_same(gold, side) if formulas else None
    if _is_equal(left, right):
        return True
    return any(
        number is not None and number.places > 0 and number.rounds(value)
        for number, value in ((numbers[0], right), (numbers[1], left))
    )


def _is_equal(left: Fraction, right: Fraction) -> bool:
    """Returns whether two values are equal, to the digits of a value that was computed: \\cos 60^\\circ is 0.5."""
    return abs(left - right) <= _TOLERANCE * max(abs(left), abs(right))


def _stated_number(sentence: str) -> Number | None:
    """Returns the only number of a sentence such as "She has 42 apples left"; None if a word before it changes it."""
    match = _NUMERAL.search(sentence)
    if not match or "\\" in sentence[: match.start()]:
        return None
    words = sentence[: match.start()].lower()
    if not re.fullmatch(r"(?:[a-z][a-z ,.'-]*)?", words) or HEDGES.search(words):
        return None
    if (
        len(words.split()) == 1 or words.rstrip().endswith("-") or (words and match.group()[0] in "-0123456789")
    ):  # "room 42", Q42
        return None
    return read_number(sentence[match.start() :].strip())


def letters_of(text: str) -> frozenset[str]:
    """Returns the variables of a formula: its letters and Greek letters, without e."""
    found = [] if read_number(text) else _LETTER.findall(split_unit(text)[0])
    return frozenset(name or letter for name, letter in found if name not in _NO_LETTERS and letter != "e")


def _has_words(text: str) -> bool:
    runs = re.findall(r"[A-Za-z]{2,}", _COMMAND.sub(" ", text))
    return any((len(run) > 2 or run.lower() == "no") and not _FUNCTIONS.fullmatch(run) for run in runs)


def tokens_of(text: str) -> list[str]:
    """Returns the words, numbers and signs of a text without articles, in lower case."""
    found = re.findall(r"[0-9a-z]+|[-+*/=<>^_]", re.sub(r"\\([A-Za-z]+)", r"\1", text).lower())
    return [token for token in found if token not in ("a", "an", "the")]


def normalize(text: str) -> str:
    """Returns the text without spaces that separate nothing, and without braces around a one-character index."""
    text = re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)
    return re.sub(r"(?<=[_^])\{([0-9A-Za-z])\}", r"\1", text)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns False if one verdict is; otherwise None if one is undecided; otherwise True."""
    is_undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        is_undecided = is_undecided or verdict is None
    return None if is_undecided else True


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns True if one verdict is; otherwise None if one is undecided; otherwise False."""
    is_undecided = False
    for verdict in verdicts:
        if verdict:
            return True
        is_undecided = is_undecided or verdict is None
    return None if is_undecided else False
