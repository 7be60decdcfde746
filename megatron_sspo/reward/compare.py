"""Compares an answer with the gold answer: numbers, words and lists here, expressions by a given function."""

import re
from collections.abc import Callable, Iterable

from megatron_sspo.reward.answer import clean, split_equation, split_list
from megatron_sspo.reward.number import Number, read_number, split_unit

LONGEST = 2000  # characters; a longer answer is wrong, unless it is identical to the gold answer
_LONGEST_LIST = 30  # items, since each may have to be compared with each

Verdict = bool | None  # None: two expressions have to be compared, and no function for that was given

_BASE = re.compile(r"[0-9]\s*_")
_COMMAND = re.compile(r"\\(?:begin|end|operatorname\*?)\s*\{[A-Za-z*]+\}|\\[A-Za-z]+")
_FUNCTIONS = re.compile(
    "(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|min|max|gcd|lcm|mod|det|dim|ker|deg|arg", re.IGNORECASE
)
_RELATION = re.compile(r"[<>]|\\(?:le|ge|lt|gt)(?![A-Za-z])")
_NAME = re.compile(r"(?:[A-Za-z]|\\[a-z]+)\s*(?:_(?:[A-Za-z0-9]|\{[^{}]*\}))?\s*(?:'*\s*\([^()]*\))?")
# The names before the coordinates of a point, in the order that is usual: (x, y) = (1, 2), but not (y, x) = (1, 2).
_COORDINATE = r"\s*(?:[A-Za-z]|\\[a-z]+)(?:_(?:[A-Za-z0-9]|\{[^{}]*\}))?\s*"
_COORDINATES = re.compile(rf"^\((?!\s*[yz]\s*,\s*x|\s*z\s*,){_COORDINATE}(?:,{_COORDINATE})+\)\s*=\s*(?=\()")
# Operations that are still to be carried out: an expression copied from the question is not an answer.
_UNEVALUATED = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim)(?![A-Za-z])")
_ARITHMETIC = re.compile(r"\+|[0-9A-Za-z)}!]\s*-|\\(?:times|cdot|div)(?![A-Za-z])|\*|(?<=[0-9])\s*x\s*(?=[0-9])")
_CHOICE = re.compile(r"\(?([A-J])\)(?!.*\b[A-J]\))")
OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
# Words that take back a yes or no: a "not" in its own clause or at the start of the next, or about the answer itself.
_RETRACTIONS = re.compile(
    r"^[^,;:.]*\bnot\b|[,;:.]\s*not\b|\bnot (?:the answer|sure|certain|right|true|correct)\b|\b(?:or|unless)\b",
    re.IGNORECASE,
)
_NUMERAL = re.compile(r"(?:(?:US)?\$|[€£¥])?\s*-?[0-9]")
# Words before a number that change its meaning, so that it is not the answer.
_HEDGES = re.compile(
    r"\b(?:not|never|n?either|n?or|between|than|least|most|about|approximately|almost|nearly|around|over|under|above|below|"
    r"twice|double|triple|half|minus|plus|times|divided|if|unless|maybe|perhaps|probably|possibly)\b"
)


def compare(gold: str, answer: str, is_same: Callable[[str, str], bool] | None = None) -> Verdict:
    """Returns whether `answer` means the same as `gold`.

    Args:
        gold: the gold answer.
        answer: the text between `<answer>` and `</answer>`.
        is_same: a function that compares two cleaned expressions that are not numbers or words; without it the result
            for them is None.

    An answer that hedges is wrong: if the gold answer is one thing, a list of several is wrong even if it contains it.
    An answer that is still a task is wrong: an arithmetic expression if the gold answer is a number, or a sum, product,
    integral or limit if the gold answer has none.
    """
    if gold == answer:
        return True
    if max(len(gold), len(answer)) > LONGEST:
        return False
    gold, answer = clean(gold), clean(answer)
    if not gold or not answer:
        return False
    if _normalize(gold) == _normalize(answer):
        return True
    if not (_is_balanced(gold) and _is_balanced(answer)):
        return False
    return _compare_lists(gold, answer, is_same)


def _compare_lists(gold: str, answer: str, is_same: Callable[[str, str], bool] | None) -> Verdict:
    if gold.lower() in OPPOSITES and (tokens := _tokens(answer)):
        return tokens[0] == gold.lower() and OPPOSITES[tokens[0]] not in tokens and not _RETRACTIONS.search(answer)
    if re.fullmatch(r"\(?[A-J]\)?", gold) and (choice := _CHOICE.match(answer)):
        return choice[1] == gold.strip("()")
    names = {_normalize(found.group()) for text in (gold, answer) if (found := _COORDINATES.match(text))}
    if len(names) == 1:  # if both have names, these have to be the same
        gold, answer = _COORDINATES.sub("", gold), _COORDINATES.sub("", answer)
    brackets, items = split_list(gold, thousands=True)
    other_brackets, other_items = split_list(answer, thousands=True)
    if len(items) != len(other_items):  # "100,200" is a list where the other side has two items
        brackets, items = split_list(gold, thousands=False)
        other_brackets, other_items = split_list(answer, thousands=False)
    if len(items) == len(other_items) == 1:
        return _compare_items(items[0], other_items[0], is_same)
    if bool(_RELATION.search(gold)) != bool(_RELATION.search(answer)):  # 0 < x < 1 and (0, 1)
        if len(items) == len(other_items) and _is_union(gold) and _is_union(answer):
            return _compare_sets(items, other_items, is_same)
        return is_same(gold, answer) if is_same else None
    if len(items) != len(other_items) or len(items) > _LONGEST_LIST:
        return False
    kinds = {brackets, other_brackets}
    if len(kinds) > 1 and not ("" in kinds and kinds & {"()", "{}"}):
        return False
    if kinds <= {"", "{}"}:
        return _compare_sets(items, other_items, is_same)
    return _combine(_compare_lists(*pair, is_same) for pair in zip(items, other_items, strict=True))


def _is_union(text: str) -> bool:
    """Returns whether a text is a union of intervals, or of inequalities such as x < 2 or x > 3."""
    if _RELATION.search(text):
        return " or " in text and not re.search(r"[,;]| and ", text)
    return "\\cup" in text


def _compare_sets(items: list[str], others: list[str], is_same: Callable[[str, str], bool] | None) -> Verdict:
    """Returns whether two lists hold the same items in any order. Equality is transitive: the first match is enough."""
    left = list(others)
    is_undecided = False
    for item in items:
        verdicts = [_compare_lists(item, other, is_same) for other in left]
        if True in verdicts:
            del left[verdicts.index(True)]
        elif None in verdicts:
            is_undecided = True
        else:
            return False
    return None if is_undecided else True


def _combine(verdicts: Iterable[Verdict]) -> Verdict:
    is_undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        is_undecided = is_undecided or verdict is None
    return None if is_undecided else True


def _compare_items(gold: str, answer: str, is_same: Callable[[str, str], bool] | None) -> Verdict:
    gold_sides, answer_sides = split_equation(gold), split_equation(answer)
    names = [bool(_NAME.fullmatch(found[0])) for found in (gold_sides, answer_sides)]
    if len(gold_sides) > 1 and len(answer_sides) > 1:
        if not all(names):
            return is_same(gold, answer) if is_same else None
        if _normalize(gold_sides[0]) != _normalize(answer_sides[0]):
            return False
        gold, answer = gold_sides[-1], answer_sides[-1]
    elif len(answer_sides) > 1:
        numbers = [read_number(side) for side in answer_sides]
        if any(n and numbers[-1] and not n.equals(numbers[-1]) for n in numbers):  # 6 = 5
            return False
        answer = answer_sides[-1]
    elif len(gold_sides) == 2 and names[0]:
        gold = gold_sides[1]
    if _normalize(gold) == _normalize(answer):
        return True
    gold_number = read_number(gold)
    answer_number = read_number(answer) or (_stated_number(answer) if gold_number else None)
    if gold_number and answer_number:
        return gold_number.equals(answer_number)
    if _BASE.search(gold) or _BASE.search(answer):
        return False  # 16_8 is neither 16 nor 16_7; its other spellings were compared before
    (bare_gold, gold_unit), (bare_answer, answer_unit) = split_unit(gold), split_unit(answer)
    if _has_words(bare_gold) or _has_words(bare_answer):
        return _tokens(gold) == _tokens(answer)
    if gold_number and _ARITHMETIC.search(answer):
        return False
    if _UNEVALUATED.search(answer) and not _UNEVALUATED.search(gold):
        return False
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return False
    return is_same(bare_gold, bare_answer) if is_same else None


def _stated_number(sentence: str) -> Number | None:
    """Returns the only number of a sentence such as "She has 42 apples left"; None if a word before it changes it."""
    match = _NUMERAL.search(sentence)
    if not match or "\\" in sentence[: match.start()]:
        return None
    words = sentence[: match.start()].lower()
    if not re.fullmatch(r"[a-z ,.'-]*", words) or _HEDGES.search(words):
        return None
    return read_number(sentence[match.start() :].strip())


def _has_words(text: str) -> bool:
    runs = re.findall(r"[A-Za-z]{2,}", _COMMAND.sub(" ", text))
    return any((len(run) > 2 or run.lower() == "no") and not _FUNCTIONS.fullmatch(run) for run in runs)


def _tokens(text: str) -> list[str]:
    found = re.findall(r"[0-9a-z]+|[-+*/=<>^_]", re.sub(r"\\([A-Za-z]+)", r"\1", text).lower())
    return [token for token in found if token not in ("a", "an", "the")]


def _normalize(text: str) -> str:
    """Returns the text without spaces that separate nothing, and without braces around a one-character index."""
    text = re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)
    return re.sub(r"(?<=[_^])\{([0-9A-Za-z])\}", r"\1", text)


def _is_balanced(text: str) -> bool:
    """Returns whether every brace has its partner. Inside of a box, "5}{6" would be read as 5."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0
