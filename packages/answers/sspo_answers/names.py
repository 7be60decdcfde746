"""Reads names before values: `x = 3`, `P = (1, 2)`, `\\angle ABC = 60`, `NO : BO = 1 : \\sqrt{6}`, "Area = 12".

Parameters are names, too: `x = \\pi + 2k\\pi, k \\in \\mathbb{Z}` is the same with n.
"""

import re
from dataclasses import dataclass

from sspo_answers.answer import split_equation
from sspo_answers.formulas.formula import FUNCTIONS
from sspo_answers.quantities.number import read_number
from sspo_answers.quantities.units import split_unit
from sspo_answers.spelling import respell_constants
from sspo_answers.unsolved import is_unsolved

_INDEX = r"(?:_(?:[A-Za-z0-9]|\\[a-z]+|\{[^{}]*\}))?"
_ARGUMENTS = r"(?:\([^()=]*\))?"
_INVERSE = r"(?:\^\{-1\}(?=\())?"  # f^{-1}(x)
_DECORATION = (
    r"\\(?:overline|overrightarrow|overleftrightarrow|vec|w?i?d?e?hat|bar|mathbf|boldsymbol|mathcal|operatorname)"
)
_SHAPE = r"m?\\(?:angle|measuredangle|triangle|odot|arc|square)"
_LETTERS = r"(?:[A-Z]'*){1,5}|[a-zA-Z]'*|\\(?!pi(?![A-Za-z])|infty|angle|frac|sqrt|log|ln)[A-Za-z]+"
SYMBOL = re.compile(
    r"\\frac\{d[A-Za-z]\}\{d[A-Za-z]\}|d[A-Za-z]/d[A-Za-z]|"
    rf"\|?(?:{_SHAPE})?(?:{_DECORATION}\{{[A-Za-z']+\}}|{_DECORATION}[A-Za-z]|{_LETTERS}){_INDEX}'*{_INVERSE}{_ARGUMENTS}\|?"
)
_PHRASE = re.compile(r"(?=.*[A-Za-z]{3})[A-Za-z]+(?:[ -][A-Za-z]+)*")
_STATES = re.compile(  # "It is 3 and 3 + 4" and "40 or so" name no value
    r"\b(?:is|are|equals?)\s+\\?\$?-?[0-9]|^\\?\$?-?[0-9.,]+\s+(?:so|and|but|or|since|because)\b|"
    r"^\\?\$?-?[0-9.,]+\s+\(?[a-z]{3,}[^0-9]*$"
)
_MARKS = re.compile(rf"{_SHAPE}|{_DECORATION}|[|{{}}]|\(\)")
_PRIMED = re.compile(r"^([a-z])'(?:\(([a-z])\))?$")  # y'(t) is dy/dt
_ARGUMENT = re.compile(r"(?<=[A-Za-z])\([a-z]\)$")
_FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
_WORD = re.compile(r"(?<![A-Za-z])[A-Za-z]?[a-z]{3,}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_INDEX_OR_ARGUMENTS = re.compile(r"[A-Za-z]_(?:\{[^{}]*\}|\\?[A-Za-z0-9]+)|(?<=[A-Za-z])\([^()]*\)")
# "18 at x", "18 cm when r" before "= 3": a value and words, and no name of the 3.
_VALUE_AND_WORDS = re.compile(
    r"(?:^|\b(?:is|are|equals?)\s)[-+(]?\s*\\?\$?(?:[0-9][0-9.,]*|\\(?:frac|sqrt|pi)\S{0,60})\s(?:[A-Za-z0-9^{}]+,?\s){0,3}"
    r"(?:at|when|where|if|for|with|as|and|so|but|or|not|since|because)\s\S{1,20}$"
)
_FILLERS = frozenset(("a", "an", "the", "of", "is", "value", "total", "answer", "final"))
_REJECTIONS = frozenset(
    (
        *("not", "discard", "reject", "rejected", "extraneous", "wrong", "incorrect", "false", "except", "example"),
        *("suppose", "assume", "assuming"),
    )
)
_NO_LETTERS = FUNCTIONS | {
    *("frac", "sqrt", "pi", "cdot", "times", "div", "pm", "infty", "circ", "le", "ge", "ne", "log", "binom"),
    *("overline", "cup", "cap", "in", "approx", "angle", "triangle", "begin", "end"),
}
_BEFORE_BRACKET = re.compile(r"^([^=()\[\]]*(?:\([^()=]*\))?)\s*=\s*(?=\\?[\[{]|\([^=]*[,;])")  # (5 - x)/2 is a formula
_POINT = re.compile(r"^([A-Z]'*(?:_(?:[0-9A-Za-z]|\{[^{}]*\}))?)\s*(?=\([^()]*,)")

# for all integers k; k \\in \\mathbb{Z}
INTEGER_PARAMETER = re.compile(
    r"\s*[,;(]?\s*(?:(?:for|where|with)\s+)?(?:(?:all|any|every|each|some)\s+)?"
    r"(?:([a-z])\s*(?:\\in\s*(?:\\mathbb\{Z\}|Z)|is\s+any?\s+integer)|integers?\s+([a-z]))\s*\)?$"
)
# k \in \mathbb{N}; where m is a positive integer
_NATURAL_PARAMETER = re.compile(
    r"\s*[,;(]?\s*(?:(?:for|where|with)\s+)?(?:(?:all|any|every|each|some)\s+)?"
    r"(?:([a-z])\s*(?:\\in\s*(\\mathbb\{[NZ]\}(?:[\^_]\s*(?:[*+0]|\{[^{}]{1,6}\}))?)|is\s+(?:an?|any)\s+(positive|non-?negative|natural)\s+"
    r"(?:integer|number))|(positive|non-?negative|natural)\s+(?:integer|number)s?\s+([a-z]))\s*\)?$"
)
_UNKNOWNS = {"x", "y", "z"}  # letters that are no parameters
_NATURAL_SETS = {r"\mathbb{N}": "natural", r"\mathbb{N}^*": "positive", r"\mathbb{Z}^+": "positive"}
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|ne)(?![A-Za-z])")
# k \ge 1, for all m > 0
_BOUNDED_PARAMETER = re.compile(
    r"(?:\s*[,;(]\s*(?:(?:for|where|with)\s+)?|\s+(?:for|where|with)\s+)(?:(?:all|any|every|each|some)\s+)?(?:integers?\s+)?"
    r"([k-nr-t])\s*(>|\\ge(?![A-Za-z]))\s*([0-9]+)\s*\)?$"
)
# for all real x, after a function; (n \\in \\mathbb{N}^*), after a sequence
_ANY_ARGUMENT = re.compile(
    r"(?:\s*[,;(]?\s*(?:for\s+(?:all|any|every|each|some)|\\forall|where)\s+(?:real\s+)?(?:(?:number|constant)s?\s+)?"
    r"|\s*[,;(]\s*(?=[a-z]\s*\\in))([a-z])"
    r"(?:\s*\\in\s*(?:\\mathbb\{R\}|R)|\s+is\s+(?:an?|any|an\s+arbitrary)\s+(?:real\s+)?(?:number|constant))?\s*\)?$"
)
_ANY_INDEX = re.compile(
    r"\s*(?:[,;(]|\bfor(?:\s+all)?\b)\s*n\s*(?:\\in\s*(?:\\mathbb\{[NZ]\}|[NZ])(?:[\^_]\{?[*+]\}?)?|\\ge\s*[01])\s*\)?$"
)
_SEQUENCE = re.compile(r"[A-Za-z]_\{?n\}?\s*=")
_FUNCTION = re.compile(r"([A-Za-z])\(([a-z])\)\s*=")


@dataclass(frozen=True, slots=True)
class Named:
    """The sides of an equation: those that name a value, and those that state it."""

    names: frozenset[str]  # of symbols, in one spelling
    phrases: frozenset[str]  # words of names such as "the total area"
    values: tuple[str, ...]  # at least one
    is_symbolic: bool = False  # whether each name is one symbol, and no formula such as m + n

    @property
    def is_chain(self) -> bool:
        """Returns whether there are several values."""
        return len(self.values) > 1

    @property
    def value(self) -> str:
        """Returns the first value."""
        return self.values[0]


def read_names(text: str, known: frozenset[str] | None = None) -> Named:
    """Returns the names and values of an equation or a chain of equations; one value if the text is no equation.

    A symbol or a phrase is a name. So is a formula of letters beside a value without any, such as m + n beside 25, but
    in a gold answer not one of x, y, z, since `x + y = 5` is a line.

    Args:
        text: a text that `clean` returned.
        known: the letters of the gold value; None if the text is the gold answer. A side of an answer that has other
            letters is a name.
    """
    sides = split_equation(text)
    if not sides[0] and text.startswith("\\approx"):
        sides = sides[1:]
        text = sides[0]
    if len(sides) == 1 or not all(sides):
        return Named(frozenset(), frozenset(), (text,))
    values = [side for side in sides if not _is_name(side) or (known is not None and _is_open(side, sides))] or sides[
        -1:
    ]
    if any(
        side in variables_of(_INDEX_OR_ARGUMENTS.sub("", value)) for side in sides for value in values if side != value
    ):
        return Named(frozenset(), frozenset(), tuple(sides))  # x = 2x + 3 is an equation, and defines no x
    if known is None:
        constants = [side for side in values if not variables_of(side)]
        if constants and all(_is_quantity(side) for side in values if side not in constants):
            values = constants
    else:
        values = [
            side
            for side in values
            if variables_of(side) <= known
            or _STATES.search(side)
            or _VALUE_AND_WORDS.search(side)
            or (not known and _is_open(side, sides))
        ] or values[-1:]
    names = [side for side in sides if side not in values]
    phrases = [side for side in names if _WORD.search(_COMMAND.sub(" ", side))]
    symbols = [side for side in names if side not in phrases]
    return Named(
        frozenset(map(in_one_spelling, symbols)),
        frozenset(word for phrase in phrases for word in re.findall("[a-z]+", phrase.lower()) if word not in _FILLERS),
        tuple(values),
        all(SYMBOL.fullmatch(compact(side)) for side in symbols),
    )


def may_be_same(gold: Named, answer: Named) -> bool:
    """Returns whether the names do not contradict each other: a side without a name agrees with any."""
    if answer.phrases & _REJECTIONS:
        return False
    if gold.names and answer.names:
        return all(name in answer.names or _is_function_of(name, answer.names) for name in gold.names)
    if gold.phrases and answer.phrases:
        return bool(gold.phrases & answer.phrases)
    return True


def _is_function_of(name: str, names: frozenset[str]) -> bool:
    """Returns whether a name is x where one of the names is x(t), or the other way round."""
    bare = _ARGUMENT.sub("", name)
    return bare in names if bare != name else any(_ARGUMENT.sub("", other) == name for other in names)


def strip_name(text: str) -> tuple[str, str]:
    """Returns the name before a bracketed value, and the value: P and (1,2) for `P = (1,2)` and for `P(1,2)`.

    The name is empty, and the text whole, where there is none.
    """
    if match := _BEFORE_BRACKET.match(text):
        name = match[1].strip()
        if _is_name(name) and len(split_equation(text)) == 2:
            return in_one_spelling(name), text[match.end() :].strip()
    elif (match := _POINT.match(text)) and text.find(")") == len(text) - 1:
        return in_one_spelling(match[1]), text[match.end() :].strip()
    return "", text


def without_parameters(gold: str, answer: str) -> tuple[str, str]:
    """Returns both texts without "for all integers k", with the gold answer's letter for the answer's."""
    are_in_sets = "\\in" in gold, "\\in" in answer
    if _SEQUENCE.match(gold) or _SEQUENCE.match(answer):
        gold, answer = _ANY_INDEX.sub("", gold), _ANY_INDEX.sub("", answer)
    if "=" in gold or "=" in answer or gold.startswith("("):
        stated, found = _ANY_ARGUMENT.search(gold), _ANY_ARGUMENT.search(answer)
        gold, answer = _without_argument(gold), _without_argument(answer)
        own, other = letters_of(answer) - letters_of(gold), letters_of(gold) - letters_of(answer)
        if len(own) == len(other) == 1 and found and found[1] in own and (stated or other <= set("cCkK")):
            answer = with_letter(answer, found[1], min(other))  # any constant k, for any constant c
    functions = _FUNCTION.match(gold), _FUNCTION.match(answer)
    if functions[0] and functions[1] and functions[0][1] == functions[1][1]:
        answer = with_letter(answer, functions[1][2], functions[0][2])
    answer = respell_constants(gold, answer)
    gold, answer = _without_bounds(*_without_natural_parameters(gold, answer))
    stated, found = INTEGER_PARAMETER.search(gold), INTEGER_PARAMETER.search(answer)
    letters = [match and (match[1] or match[2]) for match in (stated, found)]
    if (stated is None) != (found is None) and ({*letters} & _UNKNOWNS or all(are_in_sets)):
        return gold, answer  # x > 3 is not x > 3, x \in \mathbb{Z}, and t \in \mathbb{R} is not t \in \mathbb{Z}
    bare_gold, bare_answer = (
        text[: match.start()] if match else text for text, match in ((gold, stated), (answer, found))
    )
    if not bare_gold or not bare_answer:
        return gold, answer
    own = letters_of(bare_answer) - letters_of(bare_gold)
    if letters[0] and not letters[1] and len(own) == 1 and own < set("klmn"):
        letters[1] = min(own)
    own = letters_of(bare_gold) - letters_of(bare_answer)
    if letters[1] and not letters[0] and len(own) == 1 and own < set("klmn"):
        letters[0] = min(own)
    if letters[0] and letters[1]:
        bare_answer = with_letter(bare_answer, letters[1], letters[0])
    return bare_gold, bare_answer


def _without_natural_parameters(gold: str, answer: str) -> tuple[str, str]:
    """Returns both texts without `k \\in \\mathbb{N}`, with one letter, if both have a parameter of the same set."""
    stated, found = _NATURAL_PARAMETER.search(gold), _NATURAL_PARAMETER.search(answer)
    if stated and not found and gold.startswith("("):  # (n, n + 1), as (k, k + 1)
        gold = gold[: stated.start()]
        own, other = letters_of(answer) - letters_of(gold), stated[1] or stated[5]
        own = own & set("klmn")
        return gold, with_letter(answer, min(own), other) if len(own) == 1 else answer
    if not stated or not found or _natural_set(stated) != _natural_set(found) or not (stated.start() and found.start()):
        return gold, answer
    letters = [match[1] or match[5] for match in (stated, found)]
    return gold[: stated.start()], with_letter(answer[: found.start()], letters[1], letters[0])


def _without_bounds(gold: str, answer: str) -> tuple[str, str]:
    """Returns both texts without `k \\ge 1`, with one letter, if both have a parameter with the same bound."""
    stated, found = _BOUNDED_PARAMETER.search(gold), _BOUNDED_PARAMETER.search(answer)
    if not stated or not found or stated.group(2, 3) != found.group(2, 3) or not (stated.start() and found.start()):
        return gold, answer
    bare, other = gold[: stated.start()], answer[: found.start()]
    if stated[1] not in letters_of(bare) or found[1] not in letters_of(other) or _INEQUALITY.search(bare + other):
        return gold, answer
    return bare, with_letter(other, found[1], stated[1])


def _natural_set(parameter: re.Match[str]) -> str:
    name = parameter[2] or parameter[3] or parameter[4]
    name = re.sub(r"\s|[{}](?=[*+0]|$)", "", name) if parameter[2] and name[-2] != "N" else name
    return _NATURAL_SETS.get(name, name.replace("-", "").lower())


def _without_argument(text: str) -> str:
    """Returns a function or an equation without "for all real x", if x is one of its letters."""
    match = _ANY_ARGUMENT.search(text)
    return text[: match.start()] if match and match[1] in letters_of(text[: match.start()]) else text


def with_letter(text: str, letter: str, other: str) -> str:
    """Returns a text with another letter for a variable, unless that letter is in it already."""
    if letter == other or other in letters_of(text):
        return text
    return re.sub(rf"(?<![A-Za-z\\]){letter}(?=[a-z]?(?![A-Za-z]))", other, text)  # in kx, too


def read_assignments(items: list[str]) -> dict[str, str] | None:
    """Returns the values of `x = 3, y = 4` by their names; None if an item has no name of its own."""
    found: dict[str, str] = {}
    for item in items:
        sides = split_equation(item)
        if len(sides) != 2 or not SYMBOL.fullmatch(compact(sides[0])):
            return None
        found[in_one_spelling(sides[0])] = sides[1]
    return found if len(found) == len(items) else None


def letters_of(text: str) -> frozenset[str]:
    """Returns the variables of a formula: its letters and Greek letters, without e."""
    found = re.findall(r"\\([A-Za-z]+)|([A-Za-z])", text)
    return frozenset(name or letter for name, letter in found if name not in _NO_LETTERS and letter != "e")


def variables_of(side: str) -> frozenset[str]:
    """Returns the letters of a side that are not its unit."""
    return frozenset() if read_number(side) else letters_of(split_unit(side)[0])


def _is_name(side: str) -> bool:
    return bool(SYMBOL.fullmatch(compact(side)) or _PHRASE.fullmatch(side))


def _is_open(side: str, sides: list[str]) -> bool:
    """Returns whether a side is a formula of one unknown, and no other side names it, as in `Area = x^2 = 42`."""
    letters = letters_of(side)
    return is_unsolved(side, letters) and not any(
        _is_name(other) and not letters_of(other) <= letters for other in sides if other != side
    )


def _is_quantity(side: str) -> bool:
    """Returns whether a formula, on one side of a gold equation, names the value on the other."""
    bare = _COMMAND.sub(" ", _INDEX_OR_ARGUMENTS.sub("", side))
    return bool(re.search(r"[A-Za-z]", side)) and bool(letters_of(side)) and not re.search("[xyz]", bare)


def compact(text: str) -> str:
    """Returns a text without white space."""
    return re.sub(r"\s+", "", text)


def in_one_spelling(name: str) -> str:
    """Returns a name without decoration; y for f(x), and the letters of a segment or an angle in one order."""
    name = _FRACTION.sub(r"\1:\2", compact(name)).replace("/", ":")
    is_vector = "\\vec" in name
    name = _PRIMED.sub(lambda m: f"d{m[1]}:d{m[2] or 'x'}", _MARKS.sub("", name))
    if name == "f(x)":
        return "y"
    if re.fullmatch("[A-Z]{2,3}", name) and not is_vector:  # the segment BA is AB, the angle CBA is ABC
        return min(name, name[::-1])
    return "+".join(sorted(name.split("+")))
