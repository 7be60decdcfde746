"""Reads a number exactly, in any of the notations that an answer may use."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

_LONGEST = 1000  # characters; Python refuses to read integers of more than 4300 digits
_LARGEST_EXPONENT = 1000  # of ten
_ENOUGH_DIGITS = 12  # significant digits with which a decimal stands for a real number that it does not state exactly
_DOUBLE_DIGITS = 15

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_SIGNED = rf"[+-]?\s*{_DECIMAL}"
_TEX_FRACTION = rf"\\frac\s*\{{\s*({_SIGNED})\s*\}}\s*\{{\s*({_SIGNED})\s*\}}"
_TEN_TO = r"(?:10|\{\s*10\s*\})\s*\^\s*(?:[{(]\s*([+-]?[0-9]+)\s*[)}]|([+-]?[0-9]+))"

_LEAD = re.compile(r"(?P<sign>[+-]?)\s*(?:(?P<currency>(?:US)?\$|[€£¥])\s*)?(?P<inner>[+-]?)\s*")
_PERCENT = re.compile(r"\s*(?:\\?%|percent(?![A-Za-z])|per cent(?![A-Za-z]))")
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?")
_POWER = r"(?:\s*\^\s*\{?[0-9]\}?)?"
_UNIT = re.compile(rf"\s*(?:[a-zA-Z]+\.?{_POWER}(?:\s*/\s*|\s+|-|$)){{1,12}}")
_UNIT_OF_EXPRESSION = re.compile(rf"(?:(?<=[0-9}}])|(?<=\\pi))\s+[a-zA-Z]{{2,}}(?:[ /]+[a-zA-Z]+)*{_POWER}$")

# Words that make a number another number, or no answer, directly after it or anywhere after it.
_CHANGES_IT = re.compile(
    "than|plus|minus|times|over|divided|by|of|pi|e|i|squared|cubed|factorial|half|quarter|k|tens|mod|modulo|base|is|"
    "are|choose|point|less|fewer|prime|bn|[a-z]+illions?|[a-z]*(?:[^e]nt|r|f|x|ven|gh|ne|n|red|sand|illion)ths?|thirds?",
    re.IGNORECASE,
)
_CHANGING = re.compile(
    r"\b(?:and|n?or|but|not|unless|if|when|where|except|un?til|least|most|below|under|above|incorrect|wrong|short|fails|"
    r"undefined|contradict[a-z]*|extraneous|impossible|rejected|approximately|about|ppm|(?:per)?mille|binary|hundreds?|thousands?|[a-z]+illions?|dozen|lakh|crore|zero|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|fifty)\b",
    re.IGNORECASE,
)
_SHORT = ("a", "an", "at", "by", "in", "of", "on", "to", "up")  # beside words
_CURRENCIES = {"$": "dollar", "US$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen"}
# Two different units of this table are two different answers; of any other word it is not known what it measures.
_UNITS = {
    name: unit
    for unit, names in {
        "millimetre": "mm millimeter millimeters millimetre millimetres",
        "centimetre": "cm centimeter centimeters centimetre centimetres",
        "metre": "m meter meters metre metres",
        "kilometre": "km kilometer kilometers kilometre kilometres",
        "inch": "in inch inches",
        "foot": "ft foot feet",
        "yard": "yd yard yards",
        "mile": "mi mile miles",
        "mile/hour": "mph",
        "kilometre/hour": "kph kmh",
        "celsius": "C celsius",
        "fahrenheit": "F fahrenheit",
        "second": "s sec secs second seconds",
        "minute": "min mins minute minutes",
        "hour": "h hr hrs hour hours",
        "day": "day days",
        "week": "week weeks",
        "month": "month months",
        "year": "year years",
        "gram": "g gram grams",
        "kilogram": "kg kilogram kilograms",
        "dollar": "dollar dollars usd",
        "cent": "cent cents",
        "euro": "euro euros eur",
        "pound": "lb lbs pound pounds",
        "ounce": "oz ounce ounces",
        "litre": "l L liter liters litre litres",
        "millilitre": "ml mL milliliter milliliters",
        "yen": "yen",
        "degree": "degree degrees",
        "radian": "rad radian radians",
    }.items()
    for name in names.split()
}


@dataclass(frozen=True, slots=True)
class Number:
    """A number as an answer states it."""

    value: Fraction  # 50 for "50%"
    percent: bool = False
    unit: str = ""  # of the table above, with its power, in one spelling; empty for any other word, and for none
    digits: int = field(default=0, compare=False)  # significant ones of an integer or decimal; 0 for other notations
    places: int = field(default=0, compare=False)  # decimals

    def equals(self, answer: "Number") -> bool:
        """Returns whether `answer` states this gold number.

        A percent sign on one side only has two readings: a unit that the other side leaves out (50% and 50), or a
        division by a hundred (50% and 0.5). The first is excluded if the gold number has no percent sign and is at most
        1: it is then a share, and 0.5% is not 0.5.
        """
        if self.unit and answer.unit and self.unit != answer.unit:
            return False
        if self.percent == answer.percent:
            return self.value == answer.value or self._agrees_with(answer) or answer._agrees_with(self)
        as_unit = self.percent or abs(self.value) > 1
        stated, bare = (self, answer) if self.percent else (answer, self)
        if bare.unit:  # $5 is not 5%
            return False
        return stated.value / 100 == bare.value or (as_unit and stated.value == bare.value)

    def states(self, value: Fraction) -> bool:
        """Returns whether this decimal has enough digits to stand for a real number, and is its value.

        It needs twelve significant digits, and is the number rounded or cut off there. Digits after the fifteenth are
        not read, since a double has no more.
        """
        places = self.places - max(0, self.digits - _DOUBLE_DIGITS)
        return self.digits >= _ENOUGH_DIGITS and places > 0 and _is_rounded(self.value, value, places)

    def as_share(self) -> "Number":
        """Returns 0.306 for 30.6%; any other number as it is."""
        return replace(self, value=self.value / 100, percent=False, places=self.places + 2) if self.percent else self

    def rounds(self, value: Fraction) -> bool:
        """Returns whether this decimal, of two significant digits or more, is a value rounded or cut off there."""
        return self.digits >= 2 and _is_rounded(self.value, value, self.places)

    def _agrees_with(self, other: "Number") -> bool:
        """Returns whether this decimal states the other number: a fraction, or a short decimal that was computed."""
        if other.digits and not (self.digits > _DOUBLE_DIGITS and other.digits <= _ENOUGH_DIGITS):
            return False
        return self.states(other.value)


def _is_rounded(decimal: Fraction, value: Fraction, places: int) -> bool:
    """Returns whether a decimal is a value, rounded or cut off at its places; beyond these it may have any digits."""
    unit = Fraction(1, 10**places)
    return 2 * abs(decimal - value) <= unit or (0 <= abs(value) - abs(decimal) < unit and decimal * value >= 0)


def read_number(text: str) -> Number | None:
    """Returns the number that a text states, with its unit; None if the text is anything else.

    It reads integers, decimals, thousands separators, fractions, mixed numbers, scientific notation, repeating decimals
    (`0.\\overline{3}`), percentages, degrees, currencies, and words after the number.

    Args:
        text: a text that `sspo_answers.answer.clean` returned.
    """
    if len(text) > _LONGEST:
        return None
    lead = _LEAD.match(text)
    assert lead is not None  # every part of it may be empty
    if lead["sign"] and lead["inner"]:
        return None
    rest = text[lead.end() :]
    for form, value_of in _FORMS:
        if not (match := form.match(rest)):
            continue
        value = value_of(match)
        tail = _read_tail(rest[match.end() :])
        if value is None or tail is None:
            continue
        percent, unit = tail
        negative = "-" in (lead["sign"], lead["inner"])
        written = match.group() if form is _PLAIN else ""
        return Number(
            -value if negative else value,
            percent,
            _CURRENCIES.get(lead["currency"] or "", unit),
            len(re.sub("[^0-9]", "", written).lstrip("0")),
            len(written.partition(".")[2]),
        )
    return None


def _read_tail(tail: str) -> tuple[bool, str] | None:
    """Percent sign and unit after a number; None where something else follows it."""
    if not tail.strip():
        return False, ""
    if match := _PERCENT.match(tail):
        rest = _read_tail(tail[match.end() :])
        return None if rest is None or rest[0] else (True, rest[1])
    if (match := _DEGREES.match(tail)) and not tail[match.end() :].strip(" CFK"):
        return False, "degree"
    if not _UNIT.fullmatch(tail):
        return None
    words = re.findall(r"[A-Za-z]+", tail)
    if any(word not in _UNITS and word not in _SHORT and len(word) < 3 for word in (*words[:2], words[-1])):
        return None
    if (_CHANGES_IT.fullmatch(words[0]) and words != ["times"]) or _CHANGING.search(tail):
        return None
    if not tail[0].isspace() and tail[0] != "-" and words[0] not in _UNITS:
        return None  # "2ac" is a product
    if len(words[0]) == 1 and words[0] != "a" and (words[0] not in _UNITS or not tail[0].isspace()):
        return None  # "5m" may be five times m; after a space, or in \\text{}, it is a unit
    return False, _unit_of(tail, words)


def _unit_of(tail: str, words: list[str]) -> str:
    """Returns a unit with its power, such as "metre^2", or a quotient of units; empty for words of no known unit."""
    power = {"square": "2", "sq": "2", "cubic": "3"}.get(words[0].lower(), "")
    names = [_UNITS.get(word) or _UNITS.get(word.lower(), "") for word in words[bool(power) :] if word != "per"]
    if not names or not all(names) or len(names) > 2:
        return names[0] if names and names[0] and len(names) > 2 and "/" not in tail else ""
    if len(names) == 2 and "/" not in tail and "per" not in words:
        return ""
    exponent = power or "".join(re.findall(r"\^\s*\{?([0-9])", tail))
    return "/".join(names) + (f"^{exponent}" if exponent else "")


def split_unit(expression: str) -> tuple[str, str]:
    """The expression without the words that say what it counts, and its unit, as `Number.unit`.

    "2\\sqrt{3} cm" and "2\\sqrt{3}" are one answer.
    """
    match = _UNIT_OF_EXPRESSION.search(expression)
    tail = _read_tail(match.group()) if match else None
    if match is None or tail is None:
        return expression, ""
    return expression[: match.start()], tail[1]


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", ""))


def _divide(top: str, bottom: str) -> Fraction | None:
    denominator = _decimal(bottom)
    return _decimal(top) / denominator if denominator else None


def _mixed(whole: str, top: str, bottom: str) -> Fraction | None:
    """Returns the value of a mixed number such as 2 1/3; None if its part is not a proper fraction."""
    part = _divide(top, bottom)
    return _decimal(whole) + part if part is not None and 0 < part < 1 else None


def _scientific(mantissa: str, exponent: str) -> Fraction | None:
    return _decimal(mantissa) * Fraction(10) ** int(exponent) if _is_small(exponent) else None


def _is_small(exponent: str) -> bool:
    return len(exponent) <= 5 and abs(int(exponent)) <= _LARGEST_EXPONENT


def _repeating(whole: str, steady: str, period: str) -> Fraction:
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    return int(whole or "0") + (int(steady or "0") + repeated) / 10 ** len(steady)


_SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PLAIN = re.compile(rf"({_DECIMAL})(?![0-9])")
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Fraction | None]], ...] = (
    (re.compile(r"([0-9]*)\.([0-9]*)\\overline\s*\{([0-9]+)\}"), lambda m: _repeating(m[1], m[2], m[3])),
    (re.compile(rf"({_DECIMAL})\s*(?:\\times|\\cdot|x|\*)\s*{_TEN_TO}"), lambda m: _scientific(m[1], m[2] or m[3])),
    (
        re.compile(rf"({_DECIMAL})\s+(dozen|hundred|thousand|million|billion|trillion)(?![A-Za-z])", re.IGNORECASE),
        lambda m: _decimal(m[1]) * _SCALES[m[2].lower()],
    ),
    (re.compile(_TEN_TO), lambda m: _scientific("1", m[1] or m[2])),
    (re.compile(rf"({_DECIMAL})[eE]([+-]?[0-9]+)(?![0-9A-Za-z])"), lambda m: _scientific(m[1], m[2])),
    (re.compile(rf"({_INTEGER})\s*(?:and\s+)?{_TEX_FRACTION}"), lambda m: _mixed(m[1], m[2], m[3])),
    (re.compile(_TEX_FRACTION), lambda m: _divide(m[1], m[2])),
    (
        re.compile(rf"({_INTEGER})(?:\s+(?:and\s+)?)([0-9]+)\s*/\s*([0-9]+)"),
        lambda m: _mixed(m[1], m[2], m[3]),
    ),
    (re.compile(rf"({_DECIMAL})\s*/\s*({_DECIMAL})"), lambda m: _divide(m[1], m[2])),
    (_PLAIN, lambda m: _decimal(m[1])),
)
