"""Cleans the text between `<answer>` and `</answer>`, and splits it into its parts."""

import re
import unicodedata

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_DIGITS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_SUPERSCRIPTS = re.compile(f"[{''.join(_DIGITS)}]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−‒–﹣－", "-"),
        **dict.fromkeys("×✕", r"\times "),
        **dict.fromkeys("·⋅∙", r"\cdot "),
        "÷": r"\div ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "±": r"\pm ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "°": r"^\circ ",
        "⁄": "/",
        "∕": "/",
    }
)
_ROOT = re.compile(r"(?:√|(?<![A-Za-z\\])sqrt)\s*(?:\(([^()]*)\)|([0-9]+|[A-Za-z]))")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_SPACES = re.compile(r"\\(?:quad|qquad|enspace|displaystyle|textstyle)(?![A-Za-z])|(?<!\\)\\[ ;:>]|~|\s+")
_LAYOUT = re.compile(r"\\(?:left|right|[Bb]igg?[lr]?)(?![A-Za-z])\.?|\\!")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|emph)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\,|,\\! ?|,\\,| (?=[0-9]{3}(?:[ .]|$)))(?=[0-9]{3}(?![0-9]))")
_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_LEAD_IN = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then)\b,?\s*)?"
    r"(?:(?:the|our|my)?\s*(?:final|correct)?\s*answer\s*(?:is|are|:|=|should be|must be|would be)|it\s+is)\s*:?\s+",
    re.IGNORECASE,
)
_MEMBER_OF = re.compile(r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_SEPARATOR = re.compile(r"\s+(?:and|or)\s+|\\cup(?![A-Za-z])|[,;]")


def unbox(text: str) -> str:
    """Returns the content of `\\boxed{}` if there is one; the contents of several different boxes form a list.

    Text beside a box is not part of the answer. A box that is never closed ends with the text.
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
        contents.append(text[match.end() + 1 : position].strip())
    if not contents:
        return text
    return ", ".join(dict.fromkeys(unbox(content) for content in contents))


def clean(text: str) -> str:
    """Returns the text in one spelling: without boxes, dollar signs, layout and lead-in, with ASCII digits and signs.

    Its meaning does not change: `\\dfrac12` and "The answer is $\\frac{1}{2}$." both become `\\frac{1}{2}`. The words
    in `\\text{}` are kept as words.
    """
    text = unbox(text.strip())
    text = _VULGAR.sub(lambda m: " " + unicodedata.normalize("NFKC", m.group()), text)
    text = _SUPERSCRIPTS.sub(lambda m: f"^{{{''.join(_DIGITS[c] for c in m.group())}}}", text)
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    text = _DELIMITERS.sub("", text)
    text = re.sub(r"(?<!\\)\$", "", text).replace("\\$", "$")
    text = text.strip().removeprefix("**").removesuffix("**").strip("` \n")
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2]}}}", text)
    text = _THOUSANDS.sub("", text).replace("\\,", " ")
    text = _SPACES.sub(" ", _LAYOUT.sub("", text))
    text = _TEXT.sub(r" \1 ", text)
    text = _FRACTION.sub(r"\\frac", text)
    text = _SHORT_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text)
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ")
    text = re.sub(r"\\(?:leq|leqslant)(?![A-Za-z])", r"\\le", re.sub(r"\\(?:geq|geqslant)(?![A-Za-z])", r"\\ge", text))
    text = re.sub(r"(?<![A-Za-z\\])(?:infinity|infty)(?![A-Za-z])", r"\\infty", text)
    text = re.sub(r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi", text)
    text = re.sub(r"(?<=[0-9A-Za-z)])\*\*(?=[0-9A-Za-z(-])", "^", text)
    text = re.sub(r"^\+\s*(?=\\infty)", "", _LEAD_IN.sub("", " ".join(text.split())))
    return _MEMBER_OF.sub("", text.rstrip(" .,;:")).strip()


def split_list(text: str, *, thousands: bool) -> tuple[str, list[str]]:
    """Returns the brackets around a whole list, such as "[)", and its items; no brackets and one item if not a list.

    Args:
        text: a text that `clean` returned.
        thousands: whether "1,234" outside of brackets is one number and not a list.
    """
    brackets, inside = _split_brackets(text)
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
        return "", items if brackets in ("()", "{}") else [text]
    return brackets, [form for item in items for form in _expand_plus_minus(item)]


def split_equation(text: str) -> list[str]:
    """Returns the sides of an equation; only one if there is no "=" outside of brackets."""
    found: list[str] = []
    start = depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "=" and depth == 0 and text[position - 1 : position] not in ("<", ">", "!", ":"):
            found.append(text[start:position].strip())
            start = position + 1
    return [*found, text[start:].strip()]


def _split_brackets(text: str) -> tuple[str, str]:
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
    if not re.search(r"\\pm(?![A-Za-z])", item):
        return [item]
    return [re.sub(r"\\pm(?![A-Za-z])", sign, item) for sign in ("+", "-")]


def _end_of_group(text: str, start: int) -> int:
    """Returns the position of the brace that closes the one at `start`; the end of the text if none does."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return position
    return len(text)
