"""Reads a number exactly, in any of the notations that an answer may use."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from sspo_answers.quantities.units import CURRENCIES, factor_between, read_tail

_LONGEST = 1000  # characters; Python refuses to read integers of more than 4300 digits
_LARGEST_EXPONENT = 1000  # of ten
_ENOUGH_DIGITS = 12  # significant digits with which a decimal stands for a real number that it does not state exactly
_DOUBLE_DIGITS = 15

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_SIGNED = rf"[+-]?\s*{_DECIMAL}"
_TEX_FRACTION = rf"\\frac\s*\{{\s*({_SIGNED})\s*\}}\s*\{{\s*({_SIGNED})\s*\}}"
_HYPHEN = r"-(?=[0-9]{1,2}\s*/\s*[0-9]{1,2}\s+[A-Za-z]{2})"  # between a mixed number's parts
_TEN_TO = r"(?:10|\{\s*10\s*\})\s*\^\s*(?:[{(]\s*([+-]?[0-9]+)\s*[)}]|([+-]?[0-9]+))"

_LEAD = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<currency>(?:US)?\$|[€£¥₹]|Rs\.?|(?:USD|EUR|GBP|INR)(?=\s))\s*)?(?P<inner>[+-]?)\s*"
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as an answer states it."""

    value: Fraction  # 50 for "50%"
    percent: bool = False
    unit: str = ""  # a unit that `units` knows, in one spelling, such as "metre^2"; empty for any other word or none
    digits: int = field(default=0, compare=False)  # significant ones of an integer or decimal; 0 for other notations
    places: int = field(default=0, compare=False)  # decimals

    def equals(self, answer: "Number") -> bool:
        """Returns whether `answer` states this gold number.

        A percent sign on one side only has two readings: a unit that the other side leaves out (50% and 50), or a
        division by a hundred (50% and 0.5). The first is excluded if the gold number has no percent sign and is at most
        1: it is then a share, and 0.5% is not 0.5.
        """
        factor = factor_between(answer.unit, self.unit)
        if factor is None:
            return False
        if factor != 1:  # 150 cm and 1.5 m
            return self.value == answer.value * factor
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
        tail = read_tail(rest[match.end() :])
        if value is None or tail is None:
            continue
        percent, unit = tail
        negative = "-" in (lead["sign"], lead["inner"])
        written = match.group() if form is _PLAIN else ""
        return Number(
            -value if negative else value,
            percent,
            CURRENCIES.get(lead["currency"] or "", unit),
            len(re.sub("[^0-9]", "", written).lstrip("0")),
            len(written.partition(".")[2]),
        )
    return None


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
    (
        re.compile(r"([0-9]{0,20})\.([0-9]{0,20}?)(?:([0-9]{1,12}?)\3\3+|([0-9]{2,12}?)\4)\s*\\dots"),  # 0.333...
        lambda m: _repeating(m[1], m[2], m[3] or m[4]),
    ),
    (re.compile(r"([0-9]+)\.([0-9]*)\(([0-9]+)\)"), lambda m: _repeating(m[1], m[2], m[3])),  # 0.1(6)
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
    # 2 1/3, and 2-1/3 before a unit: alone it is a difference
    (
        re.compile(rf"({_INTEGER})(?:\s+(?:and\s+)?|{_HYPHEN})([0-9]+)\s*/\s*([0-9]+)"),
        lambda m: _mixed(m[1], m[2], m[3]),
    ),
    (re.compile(rf"({_DECIMAL})\s*(?:/|\bout of\b)\s*({_DECIMAL})"), lambda m: _divide(m[1], m[2])),
    (re.compile(r"(1)\s+in\s+([0-9]+)"), lambda m: _divide(m[1], m[2])),
    (_PLAIN, lambda m: _decimal(m[1])),
)
