"""Reads what follows a number: percent signs, degrees, currencies, units, and words that make it another number."""

import re
from fractions import Fraction

from sspo_answers.formulas.formula import FUNCTIONS
from sspo_answers.quantities.measures import ratio, unit_of
from sspo_answers.words.languages import CHANGING, SCALES
from sspo_answers.words.spelled import respell_numerals

_PERCENT = re.compile(r"\s*(?:\\?%|percent(?![A-Za-z])|per cent(?![A-Za-z]))")
_DEGREES = re.compile(r"\s*(?:\{\})?\^\s*\{?\s*\\circ\s*\}?")
_MICRO = re.compile(r"\s*(?:\\mu\s*(?=[A-Za-z])|(?<=[0-9\s])u(?=[mgFLlCAVWHTJN](?![A-Za-z])))")
_DIGIT_AS_POWER = re.compile(r"(?<![A-Za-z])((?:[kcmd]?m|ft|in|yd|mi|s))([23])(?![0-9])")  # m2
_PRODUCT = re.compile(  # ms^{-1} and Jmol^{-1}, of two units
    r"(?<![A-Za-z])(kg|mol|rad|[kcm]?m|[kM]?[JNW]|[ACVg])(mol|kg|dm|cm|m|s|L|K|C)(?=\s*\^\s*\{?\s*-)"
)
_AFTER_POWER = re.compile(r"(?<=\^\{-[0-9]\})(?=[A-Za-z])")  # Wm^{-1}K^{-1}
_DENOMINATOR = re.compile(r"/\s*\(([^()]*)\)")  # J/(kg K)
_EACH = re.compile(r"^\s+an?\s+(?=(?:second|minute|hour|day|night|week|month|year|person|piece)\b)")  # 42 a day
_IN_BRACKETS = re.compile(
    r"(\s.*(?:pairs|triples|quadruples|tuples|points))\s*\([a-z](?:,\s*[a-z])+\)$|\s*\(([A-Za-z]+)\)$"
)
_NOUN = re.compile(r"(?!(?:times|percents)$)[a-z]{3,}[a-rtv-z]s")  # in brackets after a number: 17 (apples)
# $42 to buy the book; 42 apples for the class; 42 of them
_PURPOSE = re.compile(r"\s+of\s+them$|\s+(?:to\s+[a-z]+|for)\s+(?:the|an?|his|her|their|its|all)(?:\s+[a-z]+)+$")
_POSSESSIVE = re.compile(r"(?<=[a-z]{2})'s?(?=\s[a-z]{2})")  # at the farmers' market
_DIRECTION = re.compile(
    r"(?<=[a-z0-9])\s+(?:(?:to|towards?) the\s+)?(?:north|south|east|west|left|right|(?:up|down|in|out)wards?)$", re.I
)
_ARC = re.compile(  # 37^\circ 30' 15"
    r"(?<![0-9.])([0-9]{1,4})\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)\s*([0-5]?[0-9])\s*'(?!')(?:\s*([0-5]?[0-9])\s*(?:''|\"))?"
)
_FEET = re.compile(r"(?<=[0-9])'(?=\s*[0-9])")
_OHM = re.compile(r"^\s*([kM]?)\s*\\Omega(?![A-Za-z])")
_POWER = r"(?:\s*\^\s*\{?-?[0-9]\}?)?"
_UNIT = re.compile(rf"\s*(?:[a-zA-Z]+\.?{_POWER}(?:\s*(?:/|\\cdot(?![A-Za-z]))\s*|\s+|-|$)){{1,6}}")
_UNIT_OF_EXPRESSION = re.compile(
    rf"(?:(?<=[0-9}}])|(?<=\\pi))\s+[a-zA-Z]{{2,}}(?:\.?{_POWER}(?:[ /]+|\s*\\cdot\s*)[a-zA-Z]+)*{_POWER}$"
)

NUMERALS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    "eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|millions?|billions?|"
    "(?:tr|quadr|quint|sext|z)illions?|dozens?|lakhs?|crores?"
)
# Words that make a number another number, or no answer at all, wherever they stand after it.
_CHANGING = re.compile(
    rf"\b(?:{NUMERALS}|{CHANGING}|{SCALES}|hal(?:f|ves)|"
    r"(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]+teen|[a-z]+tie|hundred|thousand|[a-z]+illion)ths?|thirds?|"
    r"bn|mn|grand|mille|permille|ppm|ppb|bps?|basis points?|root|twice|thrice|raised|"
    r"and|n?or|not|no|none|nope|never|but|wrong|incorrect|false|except|excluding|unless|otherwise|else|if|when|where|"
    r"assuming|provided|depending|maybe|perhaps|approx|approximately|roughly|probably|possibly|ish|something|"
    r"at (?:least|most)|up to|till|until|through|versus|vs|unlike|alternatively|instead|also|then|plus|minus|below|"
    r"under|fail(?:s|ed)?|undefined|invalid|impossible|extraneous|rejected|discarded|excluded|"
    r"contradict(?:s|ion)|(?:less|fewer|more|greater|smaller|larger|bigger) than)\b",
    re.IGNORECASE,
)
_CHANGING_FIRST = re.compile(
    r"(?:to|than|over|divided|by|of|pi|e|i|squared|cubed|factorial|quarter|(?-i:k)|tens|mod|modulo|base|too|choose|short|"
    r"is|are|for|"
    r"times(?!\s*$|\s+(?:a|per|each|every|as|faster|more|larger|longer|older)\b))(?![A-Za-z])",
    re.IGNORECASE,
)
_CHANGING_LAST = re.compile(
    r"\b(?:in (?:base|hex)|max(?:imum)?|min(?:imum)|octal|binary|hexadecimal|hex|prime|bar|overbar|"
    r"repeating|recurring|complement|conjugate|transposed?|inverse|reversed|negative|doubled|halved|tripled|upwards?|onwards?)$",
    re.IGNORECASE,
)
_SINGLE_LETTER_UNITS = "msghLlVWNJKACFT"
_NUMBER_WITH_UNIT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)\.?")
_ONE_UNIT = re.compile(r"([A-Za-z]+)\.?(?:\s*\^\s*\{?(-?[0-9])\}?)?|/")
CURRENCIES = {"$": "dollar", "US$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
CURRENCIES |= {"USD": "dollar", "EUR": "euro", "GBP": "pound", "INR": "rupee"}
_MARKS = CURRENCIES | {"¢": "cent", "'": "foot", '"': "inch"}  # signs after a number
_COMPOUNDS = {
    "mph": {"mile": 1, "hour": -1},
    "fps": {"foot": 1, "second": -1},
    **{key: {"kilometre": 1, "hour": -1} for key in ("kph", "kmh", "kmph")},
    "wh": {"watt": 1, "hour": 1},
    "kwh": {"kilowatt": 1, "hour": 1},
}
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
_SAME_LETTERS = frozenset(
    map(frozenset, (("coulomb", "degree C"), ("coulomb", "degree"), ("farad", "degree F"), ("yen", "yuan")))
)
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
    if "'" in tail:
        tail = _POSSESSIVE.sub("", tail)
    if "\\" in tail or "u" in tail:
        tail = _OHM.sub(r" \1ohm", _MICRO.sub(" micro", tail))
    tail = _DIGIT_AS_POWER.sub(r"\1^\2", tail)
    if "^" in tail:
        tail = _AFTER_POWER.sub(" ", tail)
        tail = _PRODUCT.sub(
            lambda m: f"{m[1]} {m[2]}" if m.group() in ("ms", "Nm") or not unit_of(m.group()) else m.group(), tail
        )
    if "(" in tail:
        tail = _IN_BRACKETS.sub(
            lambda m: m[1] or (f" {m[2]}" if unit_of(m[2]) or _NOUN.fullmatch(m[2]) else m.group()), tail
        )
        tail = _DENOMINATOR.sub(lambda m: "/" + "/".join(re.split(r"\s*\\cdot\s*|[\s*]+", m[1].strip())), tail)
    if _CHANGING.search(tail):
        return None
    tail = _PURPOSE.sub("", tail)
    if not tail:
        return False, ""
    tail = _DIRECTION.sub("", _EACH.sub(" per ", tail))
    if not _UNIT.fullmatch(tail) or _CHANGING_FIRST.match(tail.lstrip()) or _CHANGING_LAST.search(tail.rstrip(" .")):
        return None
    words = re.findall(r"(?<!\\)\b[A-Za-z]+", tail)
    if "\\cdot" in tail and not all(unit_of(word) or word in _SINGLE_LETTER_UNITS for word in words):
        return None
    if any(len(word) == 1 and word not in _SINGLE_LETTER_UNITS + "a" for word in words[1:]):
        return None  # "42 less than y"
    if not _is_unit(words[0], tail[0].isspace()):
        return None
    return False, _known_unit(tail, words)


def respell_arc(text: str) -> str:
    """Returns a text with fractions of degrees for minutes and seconds of arc."""
    return _ARC.sub(lambda m: rf"\frac{{{3600 * int(m[1]) + 60 * int(m[2]) + int(m[3] or 0)}}}{{3600}}^\circ", text)


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
    if (lower in FUNCTIONS and not (word == "sec" and after_space)) or lower == "log":
        return False
    if len(word) == 1:  # "5m" may be five times m; after a space, or in \text{}, it is a unit
        return after_space and word in _SINGLE_LETTER_UNITS
    if _SHORT_UNITS.fullmatch(word) or (unit_of(lower) and len(word) > 3):
        return after_space or word not in _PRODUCTS_WITHOUT_SPACE
    if after_space and unit_of(word):
        return True
    if lower in _ALPHABET:  # xyz
        return False
    if len(word) < 4:
        return after_space and bool(_SHORT_WORD.fullmatch(lower))
    return (after_space or len(word) > 4) and bool(_VOWEL.search(word))


def read_sum(text: str) -> dict[str, Fraction] | None:
    """Returns the numbers of `4 hours and 30 minutes` by their units; None for a single one, or an unknown unit."""
    if text.endswith(('"', "''")):
        text = text.rstrip("'\"") + " inches"
    text = _FEET.sub(" feet ", text)
    parts = [
        respell_numerals(part) for part in re.split(r"\s*(?:,|\band\b)\s*|(?<=[A-Za-z])\.?\s*(?=[0-9])", text) if part
    ]
    found: dict[str, Fraction] = {}
    for part in parts:
        match = _NUMBER_WITH_UNIT.fullmatch(part)
        unit = unit_of(match[2]) if match else ""
        if match and match[2] == "m" and "hour" in found:
            unit = "minute"  # 1h 15m
        if match is None or not unit or unit in found:
            return None
        found[unit] = Fraction(match[1])
    return found if len(found) > 1 else None


def factor_between(unit: str, other: str) -> Fraction | None:
    """Returns how many of another unit one unit is; 1 if one is unknown; None if they differ in kind.

    Degrees without a scale are those of any, and 25 C are degrees, too.
    """
    if not unit or not other or unit == other:
        return Fraction(1)
    if "degree" in (unit, other) and {unit.partition(" ")[0], other.partition(" ")[0]} == {"degree"}:
        return Fraction(1)
    return Fraction(1) if frozenset((unit, other)) in _SAME_LETTERS else ratio(unit, other)


def _known_unit(tail: str, words: list[str]) -> str:
    """Returns the unit of a tail, such as "metre^2" or "metre second^-1"; empty if the table does not have it."""
    powers: dict[str, int] = {}
    side = before = 1  # the sign of the powers, and the power of a "square" before its unit
    last = ""
    for match in _ONE_UNIT.finditer(tail):
        word = match[1] or "per"
        lower = word.lower()
        if lower == "per":
            if last in _AMOUNTS and side == 1:
                break
            side = -1
        elif lower in ("squared", "cubed") and last:
            powers[last] *= _WORDS_OF_POWERS[lower]
        elif lower in _WORDS_OF_POWERS:
            before = _WORDS_OF_POWERS[lower]
        elif last == "degree" and (lower in _SCALES_OF_DEGREES or word in ("C", "F")):
            return f"degree {lower[0].upper()}"
        elif compound := _COMPOUNDS.get(lower):
            powers |= compound
        elif unit := unit_of(word):
            last = unit
            powers[unit] = powers.get(unit, 0) + side * before * int(match[2] or 1)
            before = 1
        elif len(words) > 2 or not powers:
            return ""
    return " ".join(unit if power == 1 else f"{unit}^{power}" for unit, power in sorted(powers.items()))


def total_of(parts: dict[str, Fraction], unit: str) -> Fraction | None:
    """Returns the sum of `read_sum` in one unit, 150 minutes for 2 hours and 30; None if a part is no such unit."""
    total = Fraction(0)
    for own, number in parts.items():
        factor = ratio(own, unit)
        if factor is None:
            return None
        total += number * factor
    return total
