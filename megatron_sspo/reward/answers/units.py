"""Reads what follows a number: percent signs, degrees, currencies, units, and words that make it another number."""

import re
from fractions import Fraction

from megatron_sspo.reward.answers.formula import FUNCTIONS

_PERCENT = re.compile(r"\s*(?:\\?%|percent(?![A-Za-z])|per cent(?![A-Za-z]))")
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?")
_MICRO = re.compile(r"\s*\\mu\s*(?=[A-Za-z])")
_OHM = re.compile(r"\s+([kM]?)\s*\\Omega(?![A-Za-z])")
_POWER = r"(?:\s*\^\s*\{?-?[0-9]\}?)?"
_UNIT = re.compile(rf"\s*(?:[a-zA-Z]+\.?{_POWER}(?:\s*(?:/|\\cdot(?![A-Za-z]))\s*|\s+|-|$)){{1,6}}")
_UNIT_OF_EXPRESSION = re.compile(rf"(?:(?<=[0-9}}])|(?<=\\pi))\s+[a-zA-Z]{{2,}}(?:\.?[ /]+[a-zA-Z]+)*{_POWER}$")

NUMERALS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    "eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|millions?|billions?|"
    "trillions?|zillions?|dozens?|lakhs?|crores?"
)
# Words that make a number another number, or no answer at all, wherever they stand after it.
_CHANGING = re.compile(
    rf"\b(?:{NUMERALS}|hal(?:f|ves)|(?:four|fif|six|seven|eigh|nin|ten|twelf|hundred|thousand|million)ths?|thirds?|"
    r"bn|mn|grand|mille|permille|ppm|ppb|bps?|basis points?|root|twice|thrice|raised|"
    r"and|n?or|not|no|none|nope|never|but|wrong|incorrect|false|except|excluding|unless|otherwise|else|if|when|where|"
    r"assuming|provided|depending|maybe|perhaps|approx|approximately|roughly|probably|possibly|ish|something|"
    r"at (?:least|most)|up to|till|until|through|versus|vs|unlike|alternatively|instead|also|then|plus|minus|below|"
    r"(?:less|fewer|more|greater|smaller|larger|bigger) than)\b",
    re.IGNORECASE,
)
_CHANGING_FIRST = re.compile(
    r"(?:to|than|over|divided|by|of|pi|e|i|squared|cubed|factorial|quarter|(?-i:k)|tens|mod|modulo|base|too|is|are|for|choose|"
    r"times(?!\s*$|\s+(?:a|per|each|every|as|faster|more|larger|longer|older)\b))(?![A-Za-z])",
    re.IGNORECASE,
)
_CHANGING_LAST = re.compile(
    r"\b(?:in (?:base|hex)|max|octal|binary|hexadecimal|hex|prime|bar|overbar|repeating|recurring|complement|conjugate|"
    r"transposed?|inverse|reversed|negative|doubled|halved|tripled|upwards?|onwards?)$",
    re.IGNORECASE,
)
_SINGLE_LETTER_UNITS = "msghLlVWNJKACF"
_NUMBER_WITH_UNIT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)\.?")
_ONE_UNIT = re.compile(r"([A-Za-z]+)\.?(?:\s*\^\s*\{?(-?[0-9])\}?)?|/")
CURRENCIES = {"$": "dollar", "US$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_MARKS = CURRENCIES | {"¢": "cent", "'": "foot", '"': "inch"}  # signs after a number
# Numbers with two different units of this table are different answers. Other words are not compared as units.
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
        "second": "s sec secs second seconds",
        "minute": "min mins minute minutes",
        "hour": "h hr hrs hour hours",
        "day": "day days",
        "week": "week weeks",
        "month": "month months",
        "year": "year years",
        "gram": "g gram grams",
        "kilogram": "kg kilogram kilograms",
        "milligram": "mg milligram milligrams",
        "ton": "t ton tons tonne tonnes",
        "ounce": "oz ounce ounces",
        "litre": "L l liter liters litre litres",
        "millilitre": "ml milliliter milliliters millilitre millilitres",
        "gallon": "gal gallon gallons",
        "quart": "qt quart quarts",
        "pint": "pint pints",
        "newton": "N newton newtons",
        "kilonewton": "kn",
        "joule": "J joule joules",
        "kilojoule": "kj kilojoule kilojoules",
        "calorie": "cal calorie calories",
        "kilocalorie": "kcal kilocalorie kilocalories",
        "watt": "W watt watts",
        "kilowatt": "kw kilowatt kilowatts",
        "hertz": "hz hertz",
        "kilohertz": "khz kilohertz",
        "megahertz": "mhz megahertz",
        "pascal": "pa pascal pascals",
        "kilopascal": "kpa kilopascal kilopascals",
        "volt": "V volt volts",
        "kilovolt": "kv",
        "ohm": "ohm ohms",
        "kiloohm": "kohm",
        "kelvin": "K kelvin kelvins",
        "dollar": "dollar dollars usd",
        "cent": "cent cents",
        "euro": "euro euros eur",
        "pound": "pound pounds lb lbs",
        "yen": "yen jpy",
        "rupee": "rupee rupees rs inr",
        "am": "am",
        "pm": "pm",
        "degree": "degree degrees",
        "radian": "rad radian radians",
    }.items()
    for name in names.split()
}
_RATES = {"mph": ("mile", "hour"), "fps": ("foot", "second")} | dict.fromkeys(
    ("kph", "kmh", "kmph"), ("kilometre", "hour")
)
# Units of which "per hour" or "a day" changes nothing: $5 and "5 dollars per hour" are one amount.
_AMOUNTS = frozenset((*CURRENCIES.values(), "cent", "second", "minute", "hour", "day", "week", "month", "year"))
# Short units, which may follow a number directly. Other runs of two or three letters may be products: "2rt", "4ac".
_SHORT_UNITS = re.compile(
    "[mcdkn]m|ft|yd|mi|ha|in|[mk]g|lbs?|oz|ml|[mk]L|gal|qt|pt|cc|cu|sq|sec|min|hrs?|wks?|yrs?|[ap]m|"
    "mph|k[mp]h|kmph|rpm|fps|[kMG]?Hz|[kM]J|[kM]Wh?|Wh|kN|[mk]V|mA|[kM]?Pa|atm|mol|k?cal|eV|[kKMGT]B|USD|EUR|GBP|INR|deg|rad|dB|[kM]?ohm"
)
_PRODUCTS_WITHOUT_SPACE = frozenset(("mg", "mi", "pt", "ha", "cc", "cu", "sq", "nm", "dm"))
_SHORT_WORD = re.compile(
    r"[b-df-hj-np-tv-z][aeiouy][a-z]|egg|ant|arm|ear|eye|owl|oil|ice|ape|elk|act|art|age|inn|one|(?:sk|fl|sp|tr)y"
)
_VOWEL = re.compile("[aeiouyAEIOUY]")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_SCALES_OF_DEGREES = ("celsius", "fahrenheit", "kelvin")
_WORDS_OF_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}


def read_tail(tail: str) -> tuple[bool, str] | None:
    """Returns whether a percent sign follows a number, and its unit; None if anything else follows."""
    if not tail.strip():
        return False, ""
    if match := _PERCENT.match(tail):
        rest = read_tail(tail[match.end() :])
        return None if rest is None or rest[0] else (True, rest[1])
    if (match := _DEGREES.match(tail)) and (scale := tail[match.end() :].strip()) in ("", "C", "F", "K"):
        return False, f"degree {scale}".strip()
    if tail.strip() in _MARKS:
        return False, _MARKS[tail.strip()]
    if "\\" in tail:
        tail = _OHM.sub(r" \1ohm", _MICRO.sub(" micro", tail))
    if not _UNIT.fullmatch(tail) or _CHANGING.search(tail):
        return None
    if _CHANGING_FIRST.match(tail.lstrip()) or _CHANGING_LAST.search(tail.rstrip(" .")):
        return None
    words = re.findall(r"(?<!\\)\b[A-Za-z]+", tail)
    if "\\cdot" in tail and not all(word in _UNITS or word in _SINGLE_LETTER_UNITS for word in words):
        return None
    if any(len(word) == 1 and word not in _SINGLE_LETTER_UNITS + "a" for word in words[1:]):
        return None  # "42 less than y"
    if not _is_unit(words[0], tail[0].isspace()):
        return None
    return False, _known_unit(tail, words)


def split_unit(expression: str) -> tuple[str, str]:
    """Returns the expression without the words of its unit, and the unit as in `Number.unit`.

    "2\\sqrt{3} cm" and "2\\sqrt{3}" are the same answer.
    """
    match = _UNIT_OF_EXPRESSION.search(expression)
    tail = read_tail(match.group()) if match else None
    if match is None or tail is None:
        return expression, ""
    return expression[: match.start()], tail[1]


def _is_unit(word: str, after_space: bool) -> bool:
    """Returns whether a word after a number is a unit or a noun, and not a product of letters such as `rt`."""
    lower = word.lower()
    if lower in FUNCTIONS or lower == "log":
        return False
    if len(word) == 1:  # "5m" may be five times m; after a space, or in \text{}, it is a unit
        return after_space and word in _SINGLE_LETTER_UNITS
    if _SHORT_UNITS.fullmatch(word) or (lower in _UNITS and len(word) > 3):
        return after_space or word not in _PRODUCTS_WITHOUT_SPACE
    if lower in _ALPHABET:  # xyz
        return False
    if len(word) < 4:
        return after_space and bool(_SHORT_WORD.fullmatch(lower))
    return (after_space or len(word) > 4) and bool(_VOWEL.search(word))


def read_sum(text: str) -> dict[str, Fraction] | None:
    """Returns the numbers of `4 hours and 30 minutes` by their units; None for a single one, or an unknown unit."""
    parts = [part for part in re.split(r"\s*(?:,|\band\b)\s*|(?<=[A-Za-z])\.?\s+(?=[0-9])", text) if part]
    found: dict[str, Fraction] = {}
    for part in parts:
        match = _NUMBER_WITH_UNIT.fullmatch(part)
        unit = _UNITS.get(match[2]) or _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None or unit in found:
            return None
        found[unit] = Fraction(match[1])
    return found if len(found) > 1 else None


def differ(unit: str, other: str) -> bool:
    """Returns whether two units are known and differ; degrees without a scale are those of any."""
    if not unit or not other or unit == other:
        return False
    return "degree" not in (unit, other) or {unit.partition(" ")[0], other.partition(" ")[0]} != {"degree"}


def _known_unit(tail: str, words: list[str]) -> str:
    """Returns the unit of a tail, such as "metre^2" or "metre second^-1"; empty if the table does not have it."""
    powers: dict[str, int] = {}
    side = before = 1  # the sign of the powers, and the power of a "square" before its unit
    last = ""
    for match in _ONE_UNIT.finditer(tail):
        word = match[1] or "per"
        lower = word.lower()
        if lower == "per":
            if last in _AMOUNTS:
                break
            side = -1
        elif lower in ("squared", "cubed") and last:
            powers[last] *= _WORDS_OF_POWERS[lower]
        elif lower in _WORDS_OF_POWERS:
            before = _WORDS_OF_POWERS[lower]
        elif lower in _SCALES_OF_DEGREES and last == "degree":
            return f"degree {lower[0].upper()}"
        elif rate := _RATES.get(lower):
            powers |= {rate[0]: 1, rate[1]: -1}
        elif unit := _UNITS.get(word) or (_UNITS.get(lower, "") if len(word) > 1 else ""):
            last = unit
            powers[unit] = powers.get(unit, 0) + side * before * int(match[2] or 1)
            before = 1
        elif len(words) > 2 or not powers:
            return ""
    return " ".join(unit if power == 1 else f"{unit}^{power}" for unit, power in sorted(powers.items()))
