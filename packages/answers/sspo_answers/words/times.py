"""Reads times of the day and dates."""

import math
import re

from sspo_answers.words.spelled import respell_numerals

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:(?:\s*,\s*|\s+)(?P<year>[0-9]{4}))?"
_DATE = re.compile(rf"(?:the\s+)?(?:{_MONTH}\s+(?:the\s+)?{_DAY}{_YEAR})", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"(?:the\s+)?{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}", re.IGNORECASE)
_ISO_DATE = re.compile(r"(?P<year>[0-9]{4})-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12][0-9]|3[01])")
_TIME = re.compile(
    r"(?:(?:(?!(?:not|never|before|after|about|around)\b|[a-z]+n't)[a-z]+\s+){0,8}at\s+)?(?P<hour>[01]?[0-9]|2[0-4])(?::(?P<minute>[0-5][0-9]))?(?:\s*(?P<half>[ap])\.?\s?m\.?)?(?:\s+o'?clock)?",
    re.IGNORECASE,
)
_NOON = re.compile(r"(?:at\s+)?(?:12(?::00)?\s+)?(?:(noon|midday)|midnight)", re.IGNORECASE)
_MINUTES = {"half": "30", "quarter": "15"}
_PAST = re.compile(
    r"(?:at\s+)?(?:an?\s+)?(?P<part>[0-9]{1,2}|[a-z]+(?:-[a-z]+)?)(?:\s+minutes?)?\s+(?:past|after|(?P<to>to|before))\s+(?P<hour>[0-9]{1,2}|[a-z]+)",
    re.IGNORECASE,
)
_PART_OF_DAY = re.compile(r"\s+in\s+the\s+(?:(morning)|afternoon|evening)$", re.IGNORECASE)


def read_date(text: str) -> tuple[int, int, int] | None:
    """Returns the year, month and day of a date such as "March 5, 2021" or 2021-03-05; the year 0 if none is stated."""
    if match := _ISO_DATE.fullmatch(text):
        return int(match["year"]), int(match["month"]), int(match["day"])
    match = _DATE.fullmatch(text) or _DAY_FIRST.fullmatch(text)
    if not match:
        return None
    return int(match["year"] or 0), _MONTHS.index(match["month"][:3].lower()) + 1, int(match["day"])


def is_same_time(gold: str, answer: str) -> bool | None:
    """Returns whether two times of the day are the same; None if the gold answer is no time, or may be a ratio.

    A gold time without a.m. or p.m. leaves open which one it is. In an answer, a time without either is of 24 hours.
    """
    stated, found = (
        _TIME.fullmatch(_in_digits(_PART_OF_DAY.sub(lambda match: " am" if match[1] else " pm", text)))
        for text in (gold, answer)
    )
    if not stated or not (stated["minute"] or stated["half"]):
        return None
    hour, minute = int(stated["hour"]), int(stated["minute"] or 0)
    is_in_words = _in_digits(answer) != answer
    is_ratio = not (stated["half"] or is_in_words) and (
        hour > 24 or math.gcd(hour, minute) == 1
    )  # 3:20 in lowest terms
    if found is None or not (stated["half"] or found["half"]):
        return None if is_ratio else found is not None and (hour, minute) == _numbers(found)
    if minute != _numbers(found)[1]:
        return False
    if not stated["half"]:
        return hour in (_numbers(found)[0], _on_24_hours(found))
    if not found["half"] and (not found["minute"] or 0 < _numbers(found)[0] <= 12):
        return False  # "6:00" may be either half of the day
    return _on_24_hours(stated) == _on_24_hours(found)


def _in_digits(text: str) -> str:
    """Returns 5:30 for "half past five", and 12:00 pm for noon; any other text as it is."""
    if match := _NOON.fullmatch(text):
        return f"12:00 {'pm' if match[1] else 'am'}"
    match = _PAST.match(text)
    minute = _MINUTES.get(match["part"].lower()) or respell_numerals(match["part"]) if match else ""
    hour = respell_numerals(match["hour"]) if match else ""
    if match is None or not (hour.isdigit() and minute.isdigit() and 0 < int(hour) <= 12 and int(minute) < 60):
        return text
    if match["to"]:
        hour, minute = str((int(hour) - 2) % 12 + 1), str(60 - int(minute))
    return f"{hour}:{minute:0>2}{text[match.end() :]}"


def _numbers(time: re.Match[str]) -> tuple[int, int]:
    return int(time["hour"]), int(time["minute"] or 0)


def _on_24_hours(time: re.Match[str]) -> int:
    hour = int(time["hour"])
    if not time["half"]:
        return hour
    return hour % 12 + (12 if time["half"].lower() == "p" else 0)
