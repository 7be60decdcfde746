"""Cleans the text of an answer, and splits it into its parts."""

import functools
import re
import unicodedata

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
# What makes another value of a box beside it: `-\boxed{5}`, `2\boxed{5}`, `\boxed{5}^2`, "not \boxed{5}".
_BEFORE_BOX = re.compile(
    r"(?:[-0-9^/+*<>{]|\\(?:times|cdot|neq?|not|approx|sqrt)|(?i:\bnot|n't)|[0-9})$]\s+or)\s*\$?\Z"
)
_AFTER_BOX = re.compile(
    r"\$?\s*(?:[_0-9+*/{%]|\^(?!\s*\{?\s*\\circ)|-\s*[0-9\\]|\\%|\\(?:times|cdot|div|pm|pi|sqrt|frac)(?![A-Za-z])|(?:\\text\s*\{\s*)?or\b)"
)
_DIGITS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_SUPERSCRIPTS = re.compile(f"[{''.join(_DIGITS)}]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_GREEK_LETTERS = "αβγδεζηθκλνξπρστφχψωΓΔΘΛΞΣΦΨΩ"
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"
)
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−‒–—﹣－", "-"),
        **dict.fromkeys("‘’′", "'"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),  # characters without a width
        **{letter: rf"\{name} " for letter, name in zip(_GREEK_LETTERS, _GREEK_NAMES.split(), strict=True)},
        **{letter: rf"\mathbb{{{name}}}" for letter, name in zip("ℕℤℚℝℂ", "NZQRC", strict=True)},
        **dict.fromkeys("×✕", r"\times "),
        **dict.fromkeys("·⋅∙", r"\cdot "),
        "÷": r"\div ",
        "∞": r"\infty ",
        "±": r"\pm ",
        **dict.fromkeys("≤⩽", r"\le "),
        **dict.fromkeys("≥⩾", r"\ge "),
        "≠": r"\ne ",
        "≈": r"\approx ",
        "∅": r"\emptyset ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "°": r"^\circ ",
        "⁄": "/",
        "∕": "/",
    }
)
_ROOT = re.compile(r"(?:√|(?<![A-Za-z\\])sqrt)\s*(?:[({]([^(){}]*)[)}]|([0-9]+|[A-Za-z]))")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_DOLLAR = re.compile(r"(?<!\\)\$")
_AMOUNT = re.compile(r"[^$]*(?<![\\$])\$\s*-?[0-9.][^$]*")  # a dollar sign that closes nothing: "$2.50"
_SPACES = re.compile(r"\\(?:quad|qquad|enspace|displaystyle|textstyle)(?![A-Za-z])|(?<!\\)\\[ ;:>]|~|\s+")
_LAYOUT = re.compile(r"\\(?:left|right|[Bb]igg?[lr]?)(?![A-Za-z])\.?|\\!")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|emph)\s*\{([^{}]*)\}")
_EMPTY_SET = re.compile(r"\\(?:varnothing|emptyset)(?![A-Za-z])|\\?\{\s*\\?\}")
_SPELLINGS = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"<=|\\(?:leq|leqslant)(?![A-Za-z])"), r"\\le "),
    (re.compile(r">=|\\(?:geq|geqslant)(?![A-Za-z])"), r"\\ge "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"!=|\\neq(?![A-Za-z])"), r"\\ne "),
    (re.compile(r"\\[cl]?dots(?![A-Za-z])|…|\.\.\."), r"\\dots "),
    (re.compile(r"(?<![A-Za-z\\])(?:[Ii]nfinity|infty)(?![A-Za-z])"), r"\\infty"),
    (re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])"), r"\\pi"),
    (re.compile(r"(?<=[0-9A-Za-z)])\*\*(?:(-?[0-9]+)|(?=[A-Za-z(-]))"), r"^{\1}"),
    (re.compile(r"\^\{\}"), "^"),
    (re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])"), r"\\cup "),
    (re.compile(r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])"), "|"),
)
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\,|,\\! ?|,\\,| (?=[0-9]{3}(?:[ .]|$)))(?=[0-9]{3}(?![0-9]))")
_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_FINAL_LINE = re.compile(r"^#{4,}[ \t]*(.*\S)\s*\Z", re.MULTILINE)  # of GSM8K
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # the notes of GSM8K: 16 - 3 = <<16-3=13>>13
# The clause that concludes: "Dividing by 4, we get S = 15", "She sold 5, so she has 12 - 5 = 7 left"
_BEFORE_CONCLUSION = re.compile(
    r"^[A-Za-z](?:(?!\b(?:or|not|and|between|about|around|approximately|guess|if|unless|answer|maybe|perhaps|wrong)\b|n't\b).)*[,.;]\s+"
    r"(?:(?:and\s+)?we\s+(?:get|have|obtain|find)\s+(?:that\s+)?|(?=(?:so|thus|hence|therefore|in total|in all)\b))",
    re.IGNORECASE,
)
_REASON = re.compile(
    r",?\s(?:because|since)\s(?:(?!\b(?:or|not|but|maybe|perhaps|also|wrong)\b|[;?]).)*$", re.IGNORECASE
)
_LEAD_IN = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then|finally|altogether|overall|in (?:total|all|conclusion))\b,?\s+)?"
    r"(?:(?:(?:the|our|my)?\s*(?:final|correct)?\s*(?:answer|solution|result)\s*"
    r"(?:is|are|:|=|(?:should|must|would) be)|(?:it|this|that)\s+is|there\s+are(?=\s+[$(0-9\\]))\s*:?\s+)?",
    re.IGNORECASE,
)
_MEMBER_OF = re.compile(r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_SEPARATOR = re.compile(r"\s+(?:and|or)(?![A-Za-z])\s*|\\cup(?![A-Za-z])|[,;]")
_SIDES = re.compile(r"[=()\[\]{}]|\\approx(?![A-Za-z])")
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")
_DECIMAL_COMMA = re.compile(
    r"(?<![0-9.,])([0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+)(?:(?:,|\{,\})([0-9]+))?(?![0-9]|[.,][0-9])"
)


def unbox(text: str) -> str:
    """Returns the content of `\\boxed{}` if there is one; the contents of several different boxes form a list.

    Text beside a box is not part of the answer, unless the box is one part of a formula. A box that is never closed
    ends with the text.
    """
    contents: list[str] = []
    position = 0
    while match := _BOX.search(text, position):
        if text[match.end() : match.end() + 1] != "{":  # \boxed 7
            word = re.match(r"\S+", text[match.end() :])
            contents.append(word.group() if word else "")
            position = match.end()
            continue
        position = _end_of_group(text, match.end())
        if _BEFORE_BOX.search(text[max(0, match.start() - 20) : match.start()]) or _AFTER_BOX.match(text, position + 1):
            return _BOX.sub("", text)
        contents.append(text[match.end() + 1 : position].strip())
    if not contents:
        return text
    return ", ".join(dict.fromkeys(_BOX.sub("", content) for content in contents))


@functools.lru_cache(maxsize=4096)  # the responses of a group share their gold answer
def clean(text: str) -> str:
    """Returns the text in one spelling: without boxes, dollar signs, layout and lead-in, with ASCII digits and signs.

    Its meaning does not change: `\\dfrac12` and "The answer is $\\frac{1}{2}$." both become `\\frac{1}{2}`. The words
    in `\\text{}` are kept as words.
    """
    text = _CALCULATOR.sub("", unbox(text.strip()))
    if final := _FINAL_LINE.search(text):
        text = final[1]
    text = _VULGAR.sub(lambda m: r" \frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", m[0]).split("⁄")), text)
    text = _SUPERSCRIPTS.sub(lambda m: f"^{{{''.join(_DIGITS[c] for c in m.group())}}}", text)
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    text = _DELIMITERS.sub("", text)
    text = (text if _AMOUNT.fullmatch(text) else _DOLLAR.sub("", text)).replace("\\$", "$")
    text = text.strip().removeprefix("**").removesuffix("**").strip("` \n")
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2]}}}", text)
    text = _THOUSANDS.sub("", text).replace("\\,", " ")
    text = _EMPTY_SET.sub(r"\\emptyset ", _SPACES.sub(" ", _LAYOUT.sub("", text)))
    if text.startswith("\\text{") and _end_of_group(text, 5) == len(text) - 1:
        text = text[6:-1]
    text = _TEXT.sub(r" \1 ", text)
    for form, spelling in _SPELLINGS:
        text = form.sub(spelling, text)
    text = _SHORT_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text)
    text = _REASON.sub("", _BEFORE_CONCLUSION.sub("", " ".join(text.split())))
    text = re.sub(r"(?:^|(?<=[(\[,]))\s*\+\s*(?=\\infty)", "", _LEAD_IN.sub("", text))
    return _MEMBER_OF.sub("", text.rstrip(" .,;:")).strip()


def split_list(text: str, *, thousands: bool) -> tuple[str, list[str]]:
    """Returns the brackets around a whole list, such as "[)", and its items; no brackets and one item if not a list.

    Args:
        text: a text that `clean` returned.
        thousands: whether "1,234" outside of brackets is one number and not a list.
    """
    brackets, inside = _brackets(text)
    numbers = _GROUPED.finditer(inside) if thousands and not brackets else ()
    within_numbers = {place for number in numbers for place in range(*number.span())}
    found: list[str] = []
    start = depth = position = 0
    while position < len(inside):
        character = inside[position]
        depth += (character in "([{") - (character in ")]}")
        match = _SEPARATOR.match(inside, position) if depth == 0 else None
        if match and position not in within_numbers:
            found.append(inside[start:position])
            start = position = match.end()
            continue
        position += 1
    items = [item.strip() for item in (*found, inside[start:]) if item.strip()]
    if len(items) == 1 and brackets:
        return "", items if brackets in ("()", "{}") and items != [r"\emptyset"] else [text]
    return brackets, [form for item in items for form in _expand_plus_minus(item)]


def split_equation(text: str) -> list[str]:
    """Returns the sides of an equation or of "≈"; only one if there is neither outside of brackets."""
    found: list[str] = []
    start = depth = 0
    for match in _SIDES.finditer(text):
        sign = match.group()
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0 and sign in ("=", "\\approx") and text[match.start() - 1 : match.start()] not in ("<", ">", "!"):
            found.append(text[start : match.start()].strip())
            start = match.end()
    return [*found, text[start:].strip()]


def read_decimal_commas(text: str) -> str:
    """Returns a text in which a comma is the decimal sign, and points group thousands, with points and no groups.

    "1.234,5" becomes "1234.5". A comma with a space after it, and a semicolon, separate the items of a list.
    """
    return _DECIMAL_COMMA.sub(lambda m: m[1].replace(".", "") + (f".{m[2]}" if m[2] else ""), text)


def _brackets(text: str) -> tuple[str, str]:
    """Returns the brackets around the whole text, and the text inside; those of a half-open interval differ."""
    opening = re.match(r"\\?\{|[(\[]", text)
    closing = re.search(r"(?:\\?\}|[)\]])$", text)
    if not opening or not closing or closing.start() < opening.end():
        return "", text
    pair = opening.group()[-1] + closing.group()[-1]
    if (pair[0] == "{") != (pair[1] == "}"):
        return "", text
    depth = 0
    for position, character in enumerate(text[: closing.end() - 1]):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and position >= opening.end() - 1:
            return "", text
    return pair, text[opening.end() : closing.start()]


def _expand_plus_minus(item: str) -> list[str]:
    if not _PLUS_MINUS.search(item):
        return [item]
    return [_PLUS_MINUS.sub(sign, item).removeprefix("+") for sign in "+-"]


def _end_of_group(text: str, start: int) -> int:
    """Returns the position of the brace that closes the one at `start`; the end of the text if none does."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return position
    return len(text)
