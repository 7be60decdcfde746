"""Compares single values: numbers, words and ratios here, formulas by `Formulas`."""

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Protocol

from sspo_answers.formulas.evaluate import arithmetic_value
from sspo_answers.quantities.number import Number, read_number
from sspo_answers.quantities.units import NUMERALS, factor_between, split_unit
from sspo_answers.words.languages import CHANGING

_TOLERANCE = Fraction(1, 10**40)  # of the larger of two values, as for formulas

Verdict = bool | None  # None: two formulas would have to be compared, and no `Formulas` was given

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_NEEDLESS_SPACE = re.compile(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])")
_SHORT_INDEX = re.compile(r"(?<=[_^])\{([0-9A-Za-z])\}")
_SPACE_BETWEEN_LETTERS = re.compile(r"(?<=(?<![A-Za-z\\])[A-Za-z])\s+(?=[A-Za-z](?![A-Za-z]))")  # E(X Y)
_OF_INTEGRATION = re.compile(r"(?<=[^\s+])\s*\+\s*C$")
_ANY_CONSTANT = re.compile(r"(?<=[^\s+])\s*\+\s*[CcKk](?:_[0-9]|_\{[0-9]\})?$")
_PRIMED = re.compile(r"(?<![a-z]{2})[A-Za-z]'+(?![a-z])")
_ANGLE = re.compile(r"\\angle\s*\{?\s*([A-Z]{3})(?![A-Za-z])")
_CAPITALS = re.compile("[A-Z]{3,}")
_SEGMENT = re.compile(r"(?<![A-Za-z\\])[A-Z]{2}(?![A-Za-z])")
_BASE = re.compile(r"[0-9]\}?\s*_")
_COMMAND = re.compile(r"\\(?:begin|end|operatorname\*?)\s*\{[A-Za-z*]+\}|\\[A-Za-z]+")
_FUNCTIONS = re.compile(
    "(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|min|max|gcd|lcm|det|dim|ker|deg|arg", re.IGNORECASE
)
RELATION = re.compile(r"[<>]|\\(?:le|ge)(?![A-Za-z])")
_RATIO = re.compile(r":(?![^({]*[)}])|(?<=[0-9])\s+to\s+(?=[0-9])")
# Operations that are still to be carried out: an expression copied from the question is not an answer.
_DEGREES = re.compile(
    r"([^A-Za-z]*(?:\\(?:frac|pi|sqrt)[^A-Za-z]*)*)(?:\^\s*\{?\s*\\circ\s*\}?|(?<=[0-9}])\s+degrees?)$"
)
_PI = re.compile(r"\\pi(?![A-Za-z])")
_THOUSANDS = re.compile(r"(?<=[0-9])[kK]$")
_MARK_OF_CURRENCY = re.compile(r"\\?\$|[€£]|(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_PERCENT = re.compile(r"([0-9.]+)\s*\\?%")
_WORD_AFTER_NUMBER = re.compile(r"(?<=[0-9])\s*[A-Za-z]{2,}(?:\s*\^\s*\{?[0-9]\}?)?")
_UNEVALUATED = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim|infty|dots)(?![A-Za-z])")
_CHOICE_OF_NUMBERS = re.compile(r"(?<![A-Za-z])(?:max|min|gcd|lcm|det|[lr]floor|[lr]ceil)(?![A-Za-z])")
_ARITHMETIC = re.compile(
    r"\+|[0-9A-Za-z)}!]\s*-|\\(?:times|cdot|div)(?![A-Za-z])|\*|(?<=[0-9])\s*x\s*(?=[0-9])|[0-9)}!]\s*\("
)
_ELLIPSIS = r"\dots"
_OPERATORS_AT_ENDS = re.compile(r"\s*([-+*/,]|\\(?:cdot|times)|)\s*(.*?)\s*([-+*/,]|\\(?:cdot|times)|)\s*", re.DOTALL)
_FORMULA_SIGN = re.compile(r"[-+*/^_0-9]|\\(?:frac|sqrt|cdot|times)(?![A-Za-z])")
# Words of up to four letters; other letters in a formula are products.
_SHORT_WORDS = frozenset(
    (
        *("and", "any", "are", "all", "both", "but", "each", "even", "five", "for", "four", "from", "half", "has"),
        *("have", "into", "less", "long", "more", "most", "much", "nine", "none", "not", "odd", "one", "only", "over"),
        *("plus", "six", "some", "ten", "than", "that", "the", "then", "they", "this", "time", "two", "true", "was"),
        *("were", "when", "will", "with", "year", "zero", "day", "days", "hour", "cent", "feet", "foot", "inch"),
        *("mile", "mod", "per", "unit"),
    )
)
_LEFT_OUT = frozenset(("triangle", "function"))
_ARTICLES = frozenset(("an", "the"))
_TOKEN = re.compile(r"[^\W_]+|[-+*/=<>^_()%|]|(?<=[0-9A-Za-z)])!(?=.*[A-Za-z])")
_BRACES = re.compile(r"\{([^{}]*)\}")
# Brackets without a sign inside and a power after, and those that no formula goes on beside: "isosceles (triangle)".
_BRACKETS_OF_WORDS = re.compile(
    r"\(([^-+*/^=<>(),]*)\)(?!\s*[\^!])|(?<![-+*/^0-9A-Za-z)])\(([^()]*)\)(?![-+*/^!0-9A-Za-z(])"
)
# A formula without any of these is no number.
_KNOWN = re.compile(r"[0-9]|\\pi(?![A-Za-z])|(?<![A-Za-z\\])e(?![A-Za-z])")
_NUMERAL = re.compile(r"(?:(?:US)?\$|[€£¥])?\s*-?[0-9]")
# Words before a number that change its meaning, so that it is not the answer.
_HEDGES = re.compile(
    rf"\b(?:{CHANGING}|not?|never|cannot|n?either|n?or|between(?!.*\b(?:is|was|are)\b)|than|least|most|except|but|without|wrong|incorrect|false|"
    r"about|approx|approximately|roughly|circa|ca|almost|nearly|near|close|around|over|under|above|below|beyond|"
    r"[a-z]+n't|twice|thrice|double|triple|quadruple|half|minus|plus|times|divide[sd]|if|unless|maybe|may be|perhaps|"
    r"probably|possibly|might|could|guess|doubts?|den(?:y|ies)|suppos(?:e|ing)|assum(?:e|ing)|unlikely|unsure|any|anything|everything|something|(?:an)?other|different|differs?|unequal|unlike|instead|"
    r"rather|such as|e\.g|example|instance|includ(?:es?|ing)|exclud(?:es?|ing)|exceeds?|exceeding|"
    r"ignor(?:es?|ing)|refus(?:es?|ing)|declin(?:es?|ing)|reject(?:s|ing)?|like|say|contains?|options?|candidates?|guess(?:es)?|problem|question|exercise|"
    r"equation|page|step)\b"
)
# Words directly before a number that make another number of it: "the square of 42", "increased by 42", "a hundred 42".
_OPERATIONS = re.compile(
    rf"\b(?:(?P<of>of|to)|by|from|after|before|past|through|until|till|opposite|base|mod|modulo|log|ln|lg|exp|sqrt|"
    rf"(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|cis|arg|sgn|phi|det|floor|ceil|ceiling|gcd|lcm|min|max|choose|error|"
    rf"add|subtract|multiply|divide|power|point|dot|first|last|next|top|(?:{NUMERALS})(?: (?:in|over|and|out of))?|"
    r"to the|of (?:the |a )?(?:number|integer|value)|(?:start|beginn?|end)(?:s|ing)? (?:in|with|at|from)|"
    r"case|fast|minimo|maximo|[oeu]|day|week|month|year|chapter|section|figure|table|line|row|column|level|room|route|item|size|lucky)$"
)
# One word before a number names another thing, "bus 42" and "prime 7", unless it says what the number is.
_ANNOUNCEMENT = re.compile(
    r"(?:total|sum|product|difference|quotient|remainder|count|max(?:imum)?|min(?:imum)?|value|ans|answer|result|solution|"
    r"cost|price|profit|score|distance|speed|rate|area|volume|length|width|height|perimeter|radius|diameter|balance|"
    r"amount|age|weight|mean|median|mode|average|probability|exactly|only|just|altogether|overall|so|thus|hence|"
    r"therefore|finally|is|are|was|were|equals?|gives|gets|has|have|had|makes|needs|takes|pays|spends|earns|saves|the)"
)
_STATES_VALUE = re.compile(
    r"\b(?:total|maximum|minimum|value|answer|result|cost|price|profit|score|distance|speed|rate|area|volume|length|width|"
    r"height|perimeter|balance|amount|age|weight|probability|chance|increase|decrease|discount|average|mean) of$|"
    r"\b(?:equals?|simplifies|simplified|evaluates|comes|adds|sums|reduces|amounts|corresponds|rises|rose|increase[sd]?|"
    r"decrease[sd]?|drops|dropped|grows|grew|falls|fell|goes|went)(?: up| out| down)? to$"
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
    if sorted(_PRIMED.findall(gold)) != sorted(_PRIMED.findall(answer)):  # f'(x) is not f(x)
        return False
    if not _may_be_same_figures(gold, answer):
        return False
    if ":" in gold or ":" in answer:
        ratios = _read_ratio(gold), _read_ratio(answer)
        if ratios[0] and ratios[1]:
            return _compare_ratios(*ratios, formulas)
        if len(ratios[0]) > 2 or len(ratios[1]) > 2:
            return False
        if any(":" in text and not ratio for ratio, text in zip(ratios, (gold, answer), strict=True)):
            return tokens_of(gold) == tokens_of(answer)
        gold, answer = (
            rf"\frac{{{ratio[0]}}}{{{ratio[1]}}}" if len(ratio) == 2 else text
            for ratio, text in zip(ratios, (gold, answer), strict=True)
        )
    gold, answer = _in_radians(gold, answer), _in_radians(answer, gold)
    gold_number = read_number(gold)
    answer_number = read_number(answer) or (_stated_number(answer, gold_number.unit) if gold_number else None)
    if gold_number and answer_number:
        return gold_number.equals(answer_number)
    if _ELLIPSIS in gold and _ELLIPSIS in answer:
        return _compare_around_ellipses(gold, answer, formulas)
    if _BASE.search(gold) or _BASE.search(answer):
        return False  # 16_8 is neither 16 nor 16_7; its other spellings were compared before
    (bare_gold, gold_unit), (bare_answer, answer_unit) = split_unit(gold), split_unit(answer)
    if _has_words(bare_gold) or _has_words(bare_answer):
        return _are_same_words(tokens_of(gold), tokens_of(answer))
    if gold_number and (_CHOICE_OF_NUMBERS.search(answer) or "\\begin" in answer):
        return False
    if gold_number and (_ARITHMETIC.search(answer) or RELATION.search(answer) or not _KNOWN.search(answer)):
        return False
    if _UNEVALUATED.search(answer) and not _UNEVALUATED.search(gold):
        return False
    factor = factor_between(answer_unit, gold_unit)
    if factor is None:
        return False
    if formulas is None:
        return None
    if factor != 1:
        return formulas.is_same(bare_gold, rf"\frac{{{factor.numerator}}}{{{factor.denominator}}}\cdot({bare_answer})")
    if _OF_INTEGRATION.search(bare_gold) and _ANY_CONSTANT.search(bare_answer):
        bare_gold, bare_answer = _OF_INTEGRATION.sub("", bare_gold), _ANY_CONSTANT.sub("", bare_answer)
    for number, text in ((gold_number, bare_answer), (answer_number, bare_gold)):
        if number and number.places and not number.percent:
            value = formulas.value_of(text)
            if value is not None:
                return _is_equal(number.value, value) or number.states(value)
    return formulas.is_same(bare_gold, bare_answer)


def _may_be_same_figures(gold: str, answer: str) -> bool:
    """Returns whether two texts name the same angles and segments, in which letters are no factors.

    The angle BAC is not ABC, AB times CD is not AC times BD, and SAS is not SSA.
    """
    if _CAPITALS.fullmatch(gold) and _CAPITALS.fullmatch(answer):
        return False  # two texts that are the same were compared before
    angles = [sorted(min(name, name[::-1]) for name in _ANGLE.findall(text)) for text in (gold, answer)]
    if angles[0] != angles[1]:
        return False
    segments = [sorted(map(sorted, _SEGMENT.findall(text))) for text in (gold, answer)]
    letters = [sorted(letter for pair in pairs for letter in pair) for pairs in segments]
    return len(segments[0]) < 2 or letters[0] != letters[1] or segments[0] == segments[1]


def _compare_around_ellipses(gold: str, answer: str, formulas: Formulas | None) -> Verdict:
    """Compares what stands before and after the ellipses of `1+2+\\dots+n`, which has no value by itself."""
    parts, others = ([_OPERATORS_AT_ENDS.fullmatch(part) for part in text.split(_ELLIPSIS)] for text in (gold, answer))
    if len(parts) != len(others):
        return False
    pairs = [(part.groups(), other.groups()) for part, other in zip(parts, others, strict=True) if part and other]
    if any((part[0], part[2]) != (other[0], other[2]) or bool(part[1]) != bool(other[1]) for part, other in pairs):
        return False
    return all_of(compare_values(part[1], other[1], formulas) for part, other in pairs if part[1])


def is_same_or_rounded(gold: str, side: str, formulas: Formulas | None) -> Verdict:
    """Returns whether a side of a chain has the value of the gold answer, or one of the two is the other rounded.

    A side need not be in a final form: it may be the task, as in `16 - 3 - 4 = 9`.
    """
    numbers = read_number(gold), read_number(side)
    if numbers[0] and numbers[1] and numbers[0].equals(numbers[1]):
        return True
    if numbers[0] is None or numbers[1] is None:  # 11/36 is about 30.6%
        numbers = tuple(number.as_share() if number else None for number in numbers)
    elif numbers[0].percent != numbers[1].percent:
        numbers = numbers[0].as_share(), numbers[1].as_share()
    values: list[Fraction | None] = []
    for number, text in zip(numbers, (gold, side), strict=True):
        value = number.value if number else arithmetic_value(_without_units(text))
        values.append(value if value is not None or formulas is None else formulas.value_of(split_unit(text)[0]))
    left, right = values
    if factor_between(split_unit(side)[1], split_unit(gold)[1]) != 1:
        left = right = None
    if left is None or right is None:
        return formulas.is_same(gold, side) if formulas else None
    if _is_equal(left, right):
        return True
    is_rounded = (numbers[0] and numbers[0].places and numbers[0].rounds(right)) or (
        numbers[1] and numbers[1].places and numbers[1].rounds(left)
    )
    if is_rounded or (isinstance(left, Fraction) and all(numbers)):
        return bool(is_rounded)
    return formulas.is_same(gold, side) if formulas else False


def _is_equal(left: Fraction, right: Fraction) -> bool:
    """Returns whether two values are equal, to the digits of a value that was computed: \\cos 60^\\circ is 0.5."""
    return abs(left - right) <= _TOLERANCE * max(abs(left), abs(right))


def _in_radians(text: str, other: str) -> str:
    """Returns an angle in degrees in radians if the other text has pi: 60^\\circ is \\frac{\\pi}{3}."""
    degrees = _DEGREES.fullmatch(text)
    if degrees and _PI.search(other) and not _DEGREES.fullmatch(other):
        return rf"\frac{{({degrees[1]})\pi}}{{180}}"
    return text


def _without_units(text: str) -> str:
    """Returns arithmetic without currencies and units: `200000 - 130000` for `$200,000 - $130,000`."""
    text = _PERCENT.sub(r"(\1/100)", _MARK_OF_CURRENCY.sub("", text))
    return _WORD_AFTER_NUMBER.sub(lambda m: "" if read_number(f"1 {m.group().strip()}") else m.group(), text)


def normalize(text: str) -> str:
    """Returns the text without spaces that separate nothing, and without braces around a one-character index."""
    if " " in text:
        text = _SPACE_BETWEEN_LETTERS.sub("", _NEEDLESS_SPACE.sub("", text))
    return _SHORT_INDEX.sub(r"\1", text) if "{" in text else text


def _are_same_words(gold: list[str], answer: list[str]) -> bool:
    """Returns whether two texts have the same words; one of them may leave out its noun: "isosceles (triangle)"."""
    if len(gold) != len(answer) and {*gold[-1:], *answer[-1:]} & _LEFT_OUT:
        gold, answer = ([word for word in words if word not in _LEFT_OUT] for words in (gold, answer))
        return gold == answer != []
    return gold == answer


def tokens_of(text: str) -> list[str]:
    """Returns the words, numbers and signs of a text without articles: words in lower case, single letters as they are.

    Brackets count where they change a formula, as in `2(n+1)`, and not around a word.
    """
    text = _BRACKETS_OF_WORDS.sub(
        lambda m: f" {m[1] or m[2] or ''} ", _BRACES.sub(r"(\1)", re.sub(r"\\([A-Za-z]+)", r"\1", text))
    )
    found = _TOKEN.findall(text)
    if found[:1] == ["A"] and len(found) > 1:
        found = found[1:]
    return [
        token if len(token) == 1 else token.lower()
        for token in found
        if token != "a" and token.lower() not in _ARTICLES
    ]


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


def _read_ratio(text: str) -> list[str]:
    """Returns the parts of a ratio such as 3:4; an empty list for any other text, such as a time."""
    parts = [part.strip() for part in _RATIO.split(text)]
    if len(parts) < 2 or not all(parts) or _has_words(text) or re.match("0[0-9]", parts[-1]):
        return []
    return parts


def _compare_ratios(golds: list[str], answers: list[str], formulas: Formulas | None) -> Verdict:
    if len(golds) != len(answers):
        return False
    pairs = [
        (rf"\frac{{{golds[0]}}}{{{gold}}}", rf"\frac{{{answers[0]}}}{{{answer}}}")
        for gold, answer in zip(golds[1:], answers[1:], strict=True)
    ]
    return all_of(compare_values(*pair, formulas) for pair in pairs)


def _stated_number(sentence: str, unit: str) -> Number | None:
    """Returns the only number of a sentence such as "She has 42 apples left"; None if a word before it changes it.

    70k is 70 thousand, unless the gold answer's unit is the kelvin.
    """
    match = _NUMERAL.search(sentence)
    if not match or "\\" in sentence[: match.start()]:
        return None
    words = sentence[: match.start()].lower()
    if not re.fullmatch(r"(?:[a-z][a-z ,.'-]*)?", words) or _HEDGES.search(words):
        return None
    if words and match.group()[0] in "-0123456789":  # no space before the number, as in "Q42"
        return None
    words = words.rstrip(" ,.-")
    if words.isalpha() and not _ANNOUNCEMENT.fullmatch(words):
        return None
    if (operation := _OPERATIONS.search(words)) and not (operation["of"] and _STATES_VALUE.search(words)):
        return None
    stated = sentence[match.start() :].strip()
    return read_number(_THOUSANDS.sub(" K" if unit == "kelvin" else " thousand", stated))


def _has_words(text: str) -> bool:
    """Returns whether letters in a text spell words; `ABC`, `xyz` and the letters of `3abc` are products."""
    runs = re.findall(r"[A-Za-z]{2,}", _COMMAND.sub(" ", text))
    is_formula = _FORMULA_SIGN.search(text) is not None
    return any(_is_word(run, is_formula) for run in runs)


def _is_word(run: str, is_formula: bool) -> bool:
    if len(run) == 2:
        return run.lower() == "no" and not is_formula
    if _FUNCTIONS.fullmatch(run):
        return False
    if len(run) > 4 or run.lower() in _SHORT_WORDS:
        return True
    return not (is_formula or run.lower() in _ALPHABET or not re.search("[aeiou]", run))
