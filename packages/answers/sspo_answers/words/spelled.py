"""Reads numbers in English words."""

import re

_ONES = {
    word: value
    for value, word in enumerate(
        (
            *(
                "zero",
                "one",
                "two",
                "three",
                "four",
                "five",
                "six",
                "seven",
                "eight",
                "nine",
                "ten",
                "eleven",
                "twelve",
            ),
            *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
        )
    )
}
_TENS = {
    word: 10 * value
    for value, word in enumerate(
        ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), start=2
    )
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
NUMERAL = "|".join((*_ONES, *_TENS, *_SCALES, "hundred", "dozen"))
_ORDINALS = (
    {word if word.endswith("th") else f"{word}th": value for word, value in _ONES.items() if value}
    | {f"{word[:-1]}ieth": value for word, value in _TENS.items()}
    | {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
)
_PARTS = {word: bottom for word, bottom in _ORDINALS.items() if bottom > 2} | {
    "half": 2,
    "halve": 2,
    "quarter": 4,
    "hundredth": 100,
    "thousandth": 1000,
}
_WORDS = rf"(?:{NUMERAL})(?:(?:\s+and\s+|\s+|-)(?:{NUMERAL}))*"
# A fraction that is the whole text, as "three quarters", "two and a half", "half". "third" alone is an ordinal.
_FRACTION = re.compile(
    rf"(?:(?P<sign>negative|minus)\s+)?(?:(?P<whole>{_WORDS})\s+and\s+)?"
    rf"(?:(?P<top>an?|{_WORDS})[\s-]+(?P<part>{'|'.join(_PARTS)})s?|half)",
    re.IGNORECASE,
)
# The same before a noun or a unit: "two and a half hours", "half an hour".
_FRACTION_OF_UNIT = re.compile(
    rf"(?P<sign>)(?P<whole>{_WORDS})\s+and\s+(?:(?P<top>an?|{_WORDS})[\s-]+(?P<part>{'|'.join(_PARTS)})s?|half)"
    r"(?=\s+(?!(?:times|of|an?|to|or|and|is|in|as)\b)[A-Za-z\\])|(?:half|(?P<quarters>an?|three)\s+quarters?\s+of)\s+an?(?=\s+(?:hour|minute|day|year|mile|meter|metre|inch|pound|dollar|gallon|pint|liter|litre|ton)s?$)",
    re.IGNORECASE,
)
# Numerals at the start of a text; those of "three quarters of a mile" are another number, and are left as words.
_IN_WORDS = re.compile(
    rf"(?:(?P<sign>negative|minus)\s+)?(?:an?\s+(?=hundred|dozen|thousand|million|billion|trillion))?"
    rf"(?P<words>{_WORDS})"
    rf"(?=$|\s+(?!(?:{NUMERAL}|and|or|to|point|in|over|quarters?|hal(?:f|ves)|[a-z]+ths?|thirds?)\b)[A-Za-z\\])",
    re.IGNORECASE,
)
# 7th, 7^{th}, seventh
_ORDINAL = re.compile(
    r"(?:the\s+)?(?:(?P<digits>[0-9]{1,9})\s*(?:\^\s*)?(?:\{\s*)?(?:st|nd|rd|th)(?:\s*\})?|(?:(?P<tens>[a-z]+ty)[\s-])?(?P<word>[a-z]+))",
    re.IGNORECASE,
)


def is_same_ordinal(gold: str, answer: str) -> bool | None:
    """Returns whether an answer is the gold ordinal, as `7th`, seventh or 7, or 7^{th} is the gold 7; None if not."""
    if gold.isdecimal() and "^" in answer and (match := _ORDINAL.fullmatch(answer)) and match["digits"]:
        return gold == match["digits"]
    if gold[-1:] not in "dht}" or (number := _read_ordinal(gold)) is None:
        return None
    return number == (int(answer) if answer.isdecimal() and len(answer) < 10 else _read_ordinal(answer))


def _read_ordinal(text: str) -> int | None:
    match = _ORDINAL.fullmatch(text)
    if match is None or match["digits"]:
        return int(match["digits"]) if match else None
    value, tens = _ORDINALS.get(match["word"].lower()), _TENS.get((match["tens"] or "").lower(), 0)
    return None if value is None or (match["tens"] and not (tens and value < 10)) else tens + value


def respell_numerals(text: str) -> str:
    """Returns a text with digits for the number in words at its start: "25 apples" for "twenty-five apples"."""
    if fraction := _FRACTION.fullmatch(text):
        return _in_digits(fraction) or text
    if fraction := _FRACTION_OF_UNIT.match(text):
        return f"{_in_digits(fraction)}{text[fraction.end() :]}" if _in_digits(fraction) else text
    match = _IN_WORDS.match(text)
    value = _value_of(re.split(r"[\s-]+", match["words"].lower())) if match else None
    if match is None or value is None:
        return text
    return f"{'-' if match['sign'] else ''}{value}{text[match.end() :]}"


def _in_digits(fraction: re.Match[str]) -> str:
    """Returns a fraction such as "2\\frac{1}{2}" for "two and a half"; "" if its words are several numbers."""
    if fraction.groupdict().get("quarters"):
        return r"\frac{3}{4}" if fraction["quarters"].lower() == "three" else r"\frac{1}{4}"
    whole, top = (
        1 if words in ("a", "an") else _value_of(re.split(r"[\s-]+", words.lower())) if words else default
        for words, default in ((fraction["whole"], 0), (fraction["top"], 1))
    )
    if whole is None or top is None:
        return ""
    bottom = _PARTS[(fraction["part"] or "half").lower()]
    return f"{'-' if fraction['sign'] else ''}{whole or ''}\\frac{{{top}}}{{{bottom}}}"


def _value_of(words: list[str]) -> int | None:
    """Returns the value of numerals such as `two hundred and five`; None if they are several numbers, as `one two`."""
    if words[-1] == "dozen":
        dozens = _value_of(words[:-1] or ["one"])
        return None if dozens is None else 12 * dozens
    total = group = 0
    smallest = 10**15  # the scale of the part before: scales fall from left to right
    last = 100  # what the word before allows: 100 after a scale or "hundred", 10 after "twenty", 1 after "five"
    for word in words:
        if word == "and":
            if last != 100 or not (total or group):
                return None
        elif word in _ONES:
            value = _ONES[word]
            if value >= last or (value == 0 and len(words) > 1):
                return None
            group, last = group + value, 1
        elif word in _TENS:
            if last != 100:
                return None
            group, last = group + _TENS[word], 10
        elif word == "hundred":
            if group >= 100 or (group and not group % 10):
                return None
            group, last = max(group, 1) * 100, 100
        else:
            if _SCALES.get(word, smallest) >= smallest:
                return None
            smallest = _SCALES[word]
            total, group, last = total + max(group, 1) * smallest, 0, 100
    return total + group
