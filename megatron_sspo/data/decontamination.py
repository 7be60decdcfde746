"""Decontamination: removes evaluation questions from the training questions."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_sspo.data.row import Dropped, Row

_MIN_WORDS = 12  # in a shorter question one changed word makes another question
_MIN_SIMILARITY = 0.8  # least share of trigrams that two questions have in common

_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))")
# Commands that change the layout of a formula but not its meaning.
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|quad|qquad|enspace|limits|nolimits|[Bb]igg?[lr]?)(?![A-Za-z])"
    r"|\\[,;:!> ()\[\]]"
    r"|\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)(?![A-Za-z])"
)
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|(?<![\w.])\.\d+|[^\W\d_]+|[^\w\s]")
_OPERATORS = frozenset("-+*/=<>^!|()[]%")
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2010\u2011\u2013", "-"))


@dataclass(frozen=True, slots=True)
class _Question:
    """The normalized form in which two questions are compared."""

    text: str  # without white space, punctuation and layout
    numbers: tuple[str, ...]  # in order
    trigrams: frozenset[tuple[str, ...]]  # trigrams of tokens; empty for a short question

    @classmethod
    def from_row(cls, row: Row) -> "_Question":
        tokens = tokenize_question(row)
        long_enough = len(tokens) >= _MIN_WORDS
        trigrams = frozenset(zip(tokens, tokens[1:], tokens[2:], strict=False)) if long_enough else frozenset()
        return cls("".join(tokens), tuple(token for token in tokens if token[-1].isdigit()), trigrams)


def decontaminate(rows: Sequence[Row | Dropped], held_out: Sequence[Row | Dropped]) -> list[Row | Dropped]:
    """Returns the rows, with a `Dropped` in place of each row whose question is among the held-out questions.

    Two questions are the same if their texts agree up to case, white space, punctuation and the layout of formulas
    (`\\dfrac` and `\\frac`, `\\left(` and `(`, with or without `$`). They are also the same if they have the same
    numbers in the same order and a Jaccard similarity of their word trigrams of at least 0.8 (for 12 words and more).
    A problem with the same words and other numbers is a different problem, and is kept.
    """
    by_text: dict[tuple[str, tuple[str, ...]], str] = {}  # without the numbers, 1/23 would be 12/3
    by_numbers: dict[tuple[str, ...], list[tuple[frozenset[tuple[str, ...]], str]]] = defaultdict(list)
    for row in held_out:
        if isinstance(row, Row):
            question = _Question.from_row(row)
            by_text.setdefault((question.text, question.numbers), row.id)
            by_numbers[question.numbers].append((question.trigrams, row.id))

    def checked(row: Row) -> Row | Dropped:
        question = _Question.from_row(row)
        reason = "repeats an evaluation question"
        if (id := by_text.get((question.text, question.numbers))) is not None:
            return Dropped(id=row.id, reason=reason, detail=f"the text of {id}")
        for trigrams, id in by_numbers.get(question.numbers, ()):
            if _is_similar(question.trigrams, trigrams):
                return Dropped(id=row.id, reason=reason, detail=f"the numbers and nearly the words of {id}")
        return row

    return [checked(row) if isinstance(row, Row) else row for row in rows]


def tokenize_question(row: Row) -> list[str]:
    """Returns the words, numbers and operators of a question, in lower case."""
    if isinstance(row.question, str):
        text = row.question
    else:
        text = "\n".join(message["content"] for message in row.question if message["role"] != "system")
    text = _LAYOUT.sub(" ", _FRACTION.sub(r"\\frac", _THOUSANDS.sub("", text)))
    tokens = _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold().translate(_MINUS))
    return [token for token in tokens if _has_meaning(token)]


def _has_meaning(token: str) -> bool:
    """Returns whether a token is more than punctuation: a word, a number, an operator, a symbol or a vowel sign."""
    if len(token) > 1 or token.isalnum() or token in _OPERATORS:
        return True
    return token != "~" and unicodedata.category(token) in ("Sm", "So", "Mn", "Mc")  # ~ is a space in LaTeX


def _is_similar(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> bool:
    smaller, larger = sorted((len(a), len(b)))
    if not smaller or smaller < _MIN_SIMILARITY * larger:
        return False
    common = len(a & b)
    return common >= _MIN_SIMILARITY * (len(a) + len(b) - common)
