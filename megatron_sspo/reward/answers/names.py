"""Reads names before values: `x = 3`, `P = (1, 2)`, `\\angle ABC = 60`, `NO : BO = 1 : \\sqrt{6}`, "Area = 12".

Parameters are names, too: `x = \\pi + 2k\\pi, k \\in \\mathbb{Z}` is the same with n.
Sets of numbers are read by the inequality that names them, and with their exceptions: `x \\ne 3` is a union.
"""

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction

from megatron_sspo.reward.answers.answer import split_equation
from megatron_sspo.reward.answers.formula import FUNCTIONS
from megatron_sspo.reward.answers.number import read_number
from megatron_sspo.reward.answers.spelling import respell_constants
from megatron_sspo.reward.answers.units import split_unit
from megatron_sspo.reward.answers.unsolved import is_unsolved

_INDEX = r"(?:_(?:[A-Za-z0-9]|\\[a-z]+|\{[^{}]*\}))?"
_ARGUMENTS = r"(?:\([^()=]*\))?"
_INVERSE = r"(?:\^\{-1\}(?=\())?"  # f^{-1}(x)
_DECORATION = (
    r"\\(?:overline|overrightarrow|overleftrightarrow|vec|w?i?d?e?hat|bar|mathbf|boldsymbol|mathcal|operatorname)"
)
_SHAPE = r"m?\\(?:angle|measuredangle|triangle|odot|arc|square)"
_LETTERS = r"(?:[A-Z]'*){1,5}|[a-zA-Z]'*|\\(?!pi(?![A-Za-z])|infty|angle|frac|sqrt|log|ln)[A-Za-z]+"
_SYMBOL = re.compile(
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
_REJECTIONS = frozenset(("not", "discard", "reject", "rejected", "extraneous", "wrong", "incorrect", "false", "except"))
_NO_LETTERS = FUNCTIONS | {
    *("frac", "sqrt", "pi", "cdot", "times", "div", "pm", "infty", "circ", "le", "ge", "ne", "log", "binom"),
    *("overline", "cup", "cap", "in", "approx", "angle", "triangle", "begin", "end"),
}
_GREATER = {">": "<", r"\ge": r"\le"}
_ABSOLUTE = re.compile(r"\|([A-Za-z])(?:([-+])([0-9.]+))?\|")  # |x-3|
_RELATION = re.compile(r"(<|>|\\(?:le|ge)(?![A-Za-z]))")
_BEFORE_BRACKET = re.compile(r"^([^=()\[\]]*(?:\([^()=]*\))?)\s*=\s*(?=\\?[(\[{])")
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
_NATURAL_SETS = {r"\mathbb{N}": "natural", r"\mathbb{N}^*": "positive", r"\mathbb{Z}^+": "positive"}
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
_LONGEST_SET = 300  # characters of a set with exceptions
REALS = r"(-\infty,\infty)"
_ALL_BUT = re.compile(
    r"(?:[A-Za-z]\s*\\ne|(?:\(-\\infty,\\infty\)|\\mathbb\{R\})\s*(?:\\setminus|\\backslash|-)\s*\\?\{|"
    r"all real (?:numbers|[a-z]) except)\s*((?:[^{}]|(?<=\\frac)\{[^{}]*\}\{[^{}]*\})*?)\s*(?:\\?\})?"
)
EXCEPTION = re.compile(r"\\ne(?![A-Za-z])|\\(?:setminus|backslash)|-\s*\\?\{|\bexcept\b")
# The points that an interval or an inequality leaves out: (1,3) \setminus \{2\}, or 1 < x < 3, x \ne 2.
_PUNCTURED = re.compile(r"([(\[][^()\[\]]*[)\]])\s*\\(?:setminus|backslash)\s*\\?\{([^{}]*?)\\?\}")
_AND_OTHER_THAN = re.compile(r"([(\[][^()\[\]]*[)\]]|[^,]+)\s*(?:,|\band\b)\s*(?:and\s+)?([A-Za-z])\s*\\ne\s*([^<>]*)")
_BOTH_SIGNS = re.compile(r"^\s*\\[pm][mp]\s*(.*)$")  # x \ne \pm 2
_BETWEEN_EXCEPTIONS = re.compile(r"\s*(?:,|\band\b)\s*(?:[A-Za-z]\s*\\ne\s*)?")


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
        frozenset(map(_in_one_spelling, symbols)),
        frozenset(word for phrase in phrases for word in re.findall("[a-z]+", phrase.lower()) if word not in _FILLERS),
        tuple(values),
        all(_SYMBOL.fullmatch(_compact(side)) for side in symbols),
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
            return _in_one_spelling(name), text[match.end() :].strip()
    elif (match := _POINT.match(text)) and text.index(")") == len(text) - 1:
        return _in_one_spelling(match[1]), text[match.end() :].strip()
    return "", text


def read_inequality(text: str) -> tuple[str, str] | None:
    """Returns the name and the interval of `0 < x \\le 1`, here x and (0,1]; None for any other text."""
    if text.count(" and ") > 1:
        return None
    if " and " in text:
        return _read_both(*text.split(" and ", 1))
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) not in (3, 5) or any(mark in text for mark in ",;=") or not all(parts):
        return None
    values, signs = parts[::2], parts[1::2]
    if any(sign in _GREATER for sign in signs):
        if not all(sign in _GREATER for sign in signs):
            return None
        values, signs = values[::-1], [_GREATER[sign] for sign in reversed(signs)]
    place = 1 if len(values) == 3 else int(bool(_SYMBOL.fullmatch(_compact(values[1]))))
    name = values.pop(place)
    if "|" in name:
        return _read_distance(name, values[0], signs[0]) if place == 0 and len(values) == 1 else None
    if not _SYMBOL.fullmatch(_compact(name)) or any(letters_of(value) for value in values):
        return None
    opening = "[" if signs[0] != "<" else "("
    closing = "]" if signs[-1] != "<" else ")"
    if len(values) == 2:
        interval = f"{opening}{values[0]},{values[1]}{closing}"
    else:
        interval = rf"{opening}{values[0]},\infty)" if place else rf"(-\infty,{values[0]}{closing}"
    return _in_one_spelling(name), interval


def read_order(text: str) -> tuple[list[str], list[str]] | None:
    """Returns the values and the signs of `c > b > a`, from the smallest value on; None unless it has two or more."""
    parts = [part.strip() for part in _RELATION.split(text)]
    values, signs = parts[::2], parts[1::2]
    if len(values) < 2 or not all(values) or len({sign in _GREATER for sign in signs}) != 1:
        return None
    if signs[0] in _GREATER:
        return values[::-1], [_GREATER[sign] for sign in reversed(signs)]
    return values, signs


def read_far(text: str) -> str | None:
    """Returns the union of the two intervals of `|x - 3| > 2`; None for any other text."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) != 3 or parts[1] not in _GREATER:
        return None
    found = _read_distance(parts[0], parts[2], _GREATER[parts[1]])
    if found is None:
        return None
    is_open = parts[1] == ">"
    left, right = found[1][1:-1].split(",")
    return rf"(-\infty,{left}{')' if is_open else ']'} \cup {'(' if is_open else '['}{right},\infty)"


def _read_distance(absolute: str, distance: str, sign: str) -> tuple[str, str] | None:
    """Returns the name and the interval of `|x - 3| < 2`; None if one of the two numbers is none, or not positive."""
    match, number = _ABSOLUTE.fullmatch(_compact(absolute)), read_number(distance)
    if not match or not number or number.value <= 0 or number.unit or number.percent:
        return None
    center = read_number(match[3] or "0")
    if center is None:
        return None
    middle = -center.value if match[2] == "+" else center.value
    ends = f"{middle - number.value},{middle + number.value}"
    return match[1], f"({ends})" if sign == "<" else f"[{ends}]"


def _read_both(first: str, second: str) -> tuple[str, str] | None:
    """Returns the name and the interval of `x > 0 and x \\le 1`; None for any other two texts."""
    found = read_inequality(first), read_inequality(second)
    if not found[0] or not found[1] or found[0][0] != found[1][0]:
        return None
    lower, upper = sorted((found[0][1], found[1][1]), key=lambda interval: interval.startswith(r"(-\infty,"))
    if not lower.endswith(r",\infty)") or not upper.startswith(r"(-\infty,"):
        return None
    return found[0][0], lower.removesuffix(r"\infty)") + upper.removeprefix(r"(-\infty,")


def without_parameters(gold: str, answer: str) -> tuple[str, str]:
    """Returns both texts without "for all integers k", with the gold answer's letter for the answer's."""
    if _SEQUENCE.match(gold) or _SEQUENCE.match(answer):
        gold, answer = _ANY_INDEX.sub("", gold), _ANY_INDEX.sub("", answer)
    if "=" in gold or "=" in answer:
        stated, found = _ANY_ARGUMENT.search(gold), _ANY_ARGUMENT.search(answer)
        gold, answer = _without_argument(gold), _without_argument(answer)
        own, other = letters_of(answer) - letters_of(gold), letters_of(gold) - letters_of(answer)
        if len(own) == len(other) == 1 and found and found[1] in own and (stated or other <= set("cCkK")):
            answer = _with_letter(answer, found[1], min(other))  # any constant k, for any constant c
    functions = _FUNCTION.match(gold), _FUNCTION.match(answer)
    if functions[0] and functions[1] and functions[0][1] == functions[1][1]:
        answer = _with_letter(answer, functions[1][2], functions[0][2])
    answer = respell_constants(gold, answer)
    gold, answer = _without_natural_parameters(gold, answer)
    stated, found = INTEGER_PARAMETER.search(gold), INTEGER_PARAMETER.search(answer)
    letters = [match and (match[1] or match[2]) for match in (stated, found)]
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
        bare_answer = _with_letter(bare_answer, letters[1], letters[0])
    return bare_gold, bare_answer


def _without_natural_parameters(gold: str, answer: str) -> tuple[str, str]:
    """Returns both texts without `k \\in \\mathbb{N}`, with one letter, if both have a parameter of the same set."""
    stated, found = _NATURAL_PARAMETER.search(gold), _NATURAL_PARAMETER.search(answer)
    if not stated or not found or _natural_set(stated) != _natural_set(found) or not (stated.start() and found.start()):
        return gold, answer
    letters = [match[1] or match[5] for match in (stated, found)]
    return gold[: stated.start()], _with_letter(answer[: found.start()], letters[1], letters[0])


def _natural_set(parameter: re.Match[str]) -> str:
    name = parameter[2] or parameter[3] or parameter[4]
    name = re.sub(r"\s|[{}](?=[*+0]|$)", "", name) if parameter[2] and name[-2] != "N" else name
    return _NATURAL_SETS.get(name, name.replace("-", "").lower())


def _without_argument(text: str) -> str:
    """Returns a function or an equation without "for all real x", if x is one of its letters."""
    match = _ANY_ARGUMENT.search(text)
    return text[: match.start()] if match and match[1] in letters_of(text[: match.start()]) else text


def _with_letter(text: str, letter: str, other: str) -> str:
    """Returns a text with another letter for a variable, unless that letter is in it already."""
    if letter == other or other in letters_of(text):
        return text
    return re.sub(rf"(?<![A-Za-z\\]){letter}(?=[a-z]?(?![A-Za-z]))", other, text)  # in kx, too


def read_assignments(items: list[str]) -> dict[str, str] | None:
    """Returns the values of `x = 3, y = 4` by their names; None if an item has no name of its own."""
    found: dict[str, str] = {}
    for item in items:
        sides = split_equation(item)
        if len(sides) != 2 or not _SYMBOL.fullmatch(_compact(sides[0])):
            return None
        found[_in_one_spelling(sides[0])] = sides[1]
    return found if len(found) == len(items) else None


def letters_of(text: str) -> frozenset[str]:
    """Returns the variables of a formula: its letters and Greek letters, without e."""
    found = re.findall(r"\\([A-Za-z]+)|([A-Za-z])", text)
    return frozenset(name or letter for name, letter in found if name not in _NO_LETTERS and letter != "e")


def variables_of(side: str) -> frozenset[str]:
    """Returns the letters of a side that are not its unit."""
    return frozenset() if read_number(side) else letters_of(split_unit(side)[0])


def _is_name(side: str) -> bool:
    return bool(_SYMBOL.fullmatch(_compact(side)) or _PHRASE.fullmatch(side))


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


def _compact(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _in_one_spelling(name: str) -> str:
    name = _FRACTION.sub(r"\1:\2", _compact(name)).replace("/", ":")
    is_vector = "\\vec" in name
    name = _PRIMED.sub(lambda m: f"d{m[1]}:d{m[2] or 'x'}", _MARKS.sub("", name))
    if name == "f(x)":
        return "y"
    if re.fullmatch("[A-Z]{2,3}", name) and not is_vector:  # the segment BA is AB, the angle CBA is ABC
        return min(name, name[::-1])
    return "+".join(sorted(name.split("+")))


def as_union(text: str) -> str:
    """Returns the union of intervals for `x \\ne 3`, `|x| > 3`, or the reals without {3}; any other text as it is."""
    if "|" in text:
        return read_far(text) or text
    if len(text) > _LONGEST_SET:
        return text
    if match := _ALL_BUT.fullmatch(text):
        interval, points = REALS, match[1]
    elif match := _PUNCTURED.fullmatch(text):
        interval, points = match.groups()
    elif match := _AND_OTHER_THAN.fullmatch(text):
        name, interval = read_inequality(match[1]) or (match[2], match[1].replace(r"\mathbb{R}", REALS))
        if name != match[2]:
            return text
        points = match[3]
    else:
        return text
    numbers = [read_number(item) for item in _BETWEEN_EXCEPTIONS.split(_BOTH_SIGNS.sub(r"\1, -\1", points))]
    values = sorted({number.value for number in numbers if number is not None})
    ends = interval[1:-1].split(",")
    if len(values) != len(numbers) or len(ends) != 2 or not _lie_between(ends, values):
        return text
    ends[1:1] = map(str, values)
    return r" \cup ".join(
        f"{interval[0] if left == ends[0] else '('}{left},{right}{interval[-1] if right == ends[-1] else ')'}"
        for left, right in itertools.pairwise(ends)
    )


def _lie_between(ends: list[str], values: list[Fraction]) -> bool:
    """Returns whether values lie inside of an interval; not if an end is no number and not infinite."""
    if (lower := ends[0].strip()) != r"-\infty" and not ((low := read_number(lower)) and low.value < values[0]):
        return False
    return (upper := ends[1].strip()) == r"\infty" or bool((high := read_number(upper)) and high.value > values[-1])
