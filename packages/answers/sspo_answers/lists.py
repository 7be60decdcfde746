"""Tells what the items of a list are: roots, counts of things, intervals, or values of which one is the case."""

import re
from fractions import Fraction

from sspo_answers.answer import split_equation, split_list
from sspo_answers.quantities.number import read_number
from sspo_answers.values import RELATION

_WORDS = re.compile(r"\(?[A-J]\)?|[A-Za-z]{2,}(?: [A-Za-z]+)*")
_STATEMENT = re.compile(r"(?:\\neg\s*)?[A-Za-z]")
_NOUN = re.compile(r"[0-9]\s.*?([A-Za-z]{3,}?)s?$")


def are_roots(named: dict[str, str]) -> bool:
    """Returns whether all names are one letter with an index, as x_1 and x_2, whose order has no meaning."""
    return len({name.partition("_")[0] for name in named if "_" in name}) == 1 and all("_" in name for name in named)


def read_counts(items: list[str]) -> dict[str, Fraction]:
    """Returns the numbers of `3 apples` and `4 oranges` by their nouns; empty if two have one noun."""
    found: dict[str, Fraction] = {}
    for item in items:
        number, noun = read_number(item), _NOUN.search(item)
        if number is None or noun is None:
            return {}
        found[noun[1].lower()] = number.value
    return found if len(found) == len(items) > 1 else {}


def is_union(text: str) -> bool:
    """Returns whether a text is a union of intervals, or of inequalities such as x < 2 or x > 3."""
    if RELATION.search(text):
        return " or " in text and not re.search(r"[,;]| and ", text)
    return "\\cup" in text


def is_choice(text: str) -> bool:
    """Returns whether a list without brackets holds values of one thing: `1 or 2`, or `x = 1, x = 2`."""
    names = [split_equation(item) for item in split_list(text, thousands=False)[1]]
    return " or " in text or (bool(names) and len(names[0]) > 1 and all(sides[0] == names[0][0] for sides in names))


def are_contrary(gold: str, answer: str, items: list[str]) -> bool:
    """Returns whether one of two lists says "or" where the other means all: names, inequalities, or statements.

    Args:
        gold: the gold answer.
        answer: the answer, with as many items.
        items: those of the gold answer.
    """
    if (" or " in gold) != (" or " in answer) and all(map(_WORDS.fullmatch, items)):
        return True  # Alice and Bob, and one of the two
    has_both = any(" or " in text and " and " in other for text, other in ((gold, answer), (answer, gold)))
    return has_both and all(RELATION.search(item) or _STATEMENT.fullmatch(item) for item in items)
