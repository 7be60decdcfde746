"""Cleans the text between `<answer>` and `</answer>`, and splits it into its parts."""

import functools
import re
import unicodedata

from sspo_answers.notations.plain_text import respell_difference
from sspo_answers.notations.sets import respell_whole
from sspo_answers.quantities.measures import unit_of
from sspo_answers.quantities.units import respell_arc
from sspo_answers.spelling import drop_lead, respell_commands, respell_text
from sspo_answers.words.chinese import respell_chinese
from sspo_answers.words.languages import drop_foreign_lead
from sspo_answers.words.remarks import concludes_otherwise
from sspo_answers.words.restated import take_conclusion
from sspo_answers.words.spelled import respell_numerals

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
_WORD_IN_BOX = re.compile(rf"(?:(?!{_BOX.pattern})\S)+")
# What makes another value of a box beside it: `-\boxed{5}`, `2\boxed{5}`, `\sqrt{\boxed{5}}`, `\boxed{5}^2`.
_BEFORE_BOX = re.compile(
    r"(?:(?<![-\s:])-|(?<=[^\n:-] )-|(?<=[0-9})] )-\s+|−\s*|^-|[0-9^/]|(?<!\*)\*|(?:(?<=[0-9])|(?<![^\s$]))\.|"
    r"[0-9A-Za-z)}]\s*\+\s*|"
    r"\\(?:times|cdot|neq?|not|approx|sin|cos|tan|ln|log|exp)\s*|[<>≠≈]\s*|(?i:(?:\bnot|n't)\s+)|"
    r"(?:[0-9})$]|\b[A-Za-z])\s*(?:\bor|\\text\s*\{\s*or\s*\}|或)\s*|"
    r"\\(?:sqrt|[dt]?frac)(?:\{[^{}]*\})?\{[^{}]*|[\^_]\{\s*)\$?\Z"
)
_AFTER_BOX = re.compile(
    r"\$?\s*(?:\^(?!\s*\{?\s*\\circ)|_|/\s*[0-9]|[0-9+%{]|\\%|\*(?!\*)|-\s*[0-9\\]|"
    r"\\(?:times|cdot|div|pm|mp|pi|sqrt|frac|neq?)(?![A-Za-z]))|[.,][0-9]|[B-DIOP-RU-Zbd-fi-kn-rt-z](?![A-Za-z])|"
    r"\$?\s*(?:or|\\text\s*\{\s*or\s*\}|\\lor|或)\s*\$?\s*(?:\\boxed|[-0-9\\]|[A-Za-z]\b)|"
    r"\$?\s*(?:is|was)(?:n't|\s+(?:not|never|wrong|incorrect|false))\b"
)
_FINAL = re.compile(r"\bfinal\s+answer(?:\s+is|\s*:)?[\s*:$]*(?:\\\[\s*)?\Z", re.IGNORECASE)
_FINAL_WORD = re.compile(r"\b(?:final|answer)\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+0-9.,]+")
_BEFORE_ITEM = re.compile(r"(?:[(\[]|\\\{)\s*(?:[^()\[\]{}]*,\s*)?\$?\Z")  # a box in (3, \boxed{4})
_AFTER_ITEM = re.compile(r"\$?\s*(?:,[^()\[\]{}]*)?(?:[)\]]|\\\})")
_NUMBER_IN_BOX = re.compile(
    r"(?<=[0-9.])\\(?:boxed|fbox)\s*\{\s*([0-9.]+)\s*\}|\\(?:boxed|fbox)\s*\{\s*([0-9.]+)\s*\}(?=\s*\\?%)"
)
# The unit after a box: \boxed{12} \text{cm} is not 12 m.
_UNIT_AFTER_BOX = re.compile(
    r"\$?(?:\\[,;: ]|~|\s)*(?:\\(?:text|mathrm|mbox)\s*\{[~\s]*([A-Za-z]{1,12})\s*\}|"
    r"([kcm]m|kg|m(?:et(?:er|re)|ile|inute)s?|feet|inches|(?:hour|second|day|gram|dollar|cent)s?|thousand|million|dozen)"
    r"(?![A-Za-z]))(?!\s*[\^/])"
)
_DIGITS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_SUPERSCRIPTS = re.compile(f"[{''.join(_DIGITS)}]+")
_SMALL_FRACTION = re.compile("([⁰¹²³⁴-⁹]+)[⁄/]([₀-₉]+)")  # ³⁄₇
_SUBSCRIPTS = re.compile("[₀-₉]+")
_DIGITS_WITH_MARKS = re.compile("(?:[0-9][\u0304\u0305])+|[0-9]\u0307")  # 0.3̅
_BETWEEN_CIRCLED = re.compile("(?<=[①-⑳])(?=[①-⑳])")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_GREEK_LETTERS = "αβγδεζηθκλνξπρστφχψωΓΔΘΛΞΣΦΨ"
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Sigma Phi Psi"
)
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−‒–—﹣－", "-"),
        **dict.fromkeys("“”„「」『』«»", '"'),
        **dict.fromkeys("‘’", "'"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),  # characters without a width
        "。": ".",
        "、": ",",
        **{letter: rf"\mathbb{{{name}}}" for letter, name in zip("ℕℤℚℝℂ", "NZQRC", strict=True)},
        "Ω": r"\Omega ",
        **dict.fromkeys("\u00c5\u212b", " angstroms "),
        **{sign: f" {unit}" for sign, unit in zip("㎡㎠㎥", ("m^2", "cm^2", "m^3"), strict=True)},
        **{letter: rf"\{name} " for letter, name in zip(_GREEK_LETTERS, _GREEK_NAMES.split(), strict=True)},
        **dict.fromkeys("µμ", r"\mu "),
        **dict.fromkeys("×✕", r"\times "),
        **dict.fromkeys("·⋅∙", r"\cdot "),
        "÷": r"\div ",
        "∞": r"\infty ",
        "±": r"\pm ",
        **dict.fromkeys("≤⩽≦", r"\le "),
        **dict.fromkeys("≥⩾≧", r"\ge "),
        "≠": r"\ne ",
        **dict.fromkeys("≈≃≅", r"\approx "),
        "≡": "=",
        "∶": ":",
        "∅": r"\emptyset ",
        "∠": r"\angle ",
        "△": r"\triangle ",
        "∪": r"\cup ",
        "∖": r"\setminus ",
        "∨": " or ",
        "∧": " and ",
        **{sign: rf"\{name} " for sign, name in zip("⌊⌋⌈⌉", ("lfloor", "rfloor", "lceil", "rceil"), strict=True)},
        "∴": r"\therefore ",
        "→": r"\to ",
        "⇒": r"\implies ",
        **dict.fromkeys("∎□■✓✔✅•", ""),  # signs of the end
        "∈": r"\in ",
        "∉": r"\notin ",
        "°": r"^\circ ",
        "′": "'",
        "⁄": "/",
        "∕": "/",
    }
)
_ROOT = re.compile(r"([√∛∜]|(?<![A-Za-z\\])(?:sqrt|cbrt))\s*(?:\(([^()]*)\)|([0-9]+|[A-Za-z]))")
_ROOT_IN_BRACES = re.compile(r"(?<![A-Za-z\\])sqrt(?=\s*\{)")
_SQUARE_ROOT = r"\sqrt"
_ROOTS = {"∛": r"\sqrt[3]", "cbrt": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_DOLLAR = re.compile(r"(?<!\\)\$")
_AMOUNT = re.compile(r"[^$]*(?<![\\$])\$\s*-?[0-9.][^$]*")  # a dollar sign that closes nothing: "$2.50"
_ELLIPSIS = re.compile(r"\\[lcv]?dots[a-z]?(?![A-Za-z])|…|(?:\.\s?){2,}\.")
_INFINITY = re.compile(r"(?<![A-Za-z\\])(?:[Ii]nfinity|infty|inf)(?![A-Za-z])")
_PLUS_INFINITY = re.compile(r"(?:(?<![0-9A-Za-z)}])\s*\+|^(?:positive|plus)\s)\s*(?=\\infty)")
_BULLET = re.compile(r"^\s*(?:[-*]\s+|(?=[A-Za-z]\s*=))")
_EQUATION = re.compile(
    r"(?:(?![A-Za-z]{2})[^=,<>:\\]|\\[A-Za-z]+(?![A-Za-z])|\\[^A-Za-z])+=[^=,]*"
)  # one line of "x = 1" and "y = 2"
_END_OF_LINE = re.compile(r"\\\\\s*(?=[A-Za-z]\s*=)")
_FINAL_LINE = re.compile(r"^#{4,}[ \t]*((?:\*\*)?[-+]?(?:\\?\$|[€£])?\s*[-+]?\.?[0-9][^\n]*)", re.MULTILINE)  # of GSM8K
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # the notes of GSM8K: 16 - 3 = <<16-3=13>>13
_X_AS_TIMES = re.compile(r"(?<=[0-9])(?<!(?<![0-9.])0)(?: x |x)(?=[0-9][0-9.]*(?![0-9.A-Za-z^_({]))")  # 3x4 = 12
_FENCE = re.compile(r"^\s*```[a-z]*\n")
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_PYTHON_POWER = re.compile(r"(?<=[0-9A-Za-z)])\*\*(?:(-?[0-9]+(?:\.[0-9]+)?)|(?=[A-Za-z(-]))")
_POINTS_IN_MILLIONS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9.])")  # 1.234.567 is no decimal
_THOUSANDS = re.compile(
    r"(?<=[0-9])(?:\{,\}|\{\\,\}|\\[,;: ]|,\\! ?|,\\,| (?=[0-9]{3}(?:[ .]|$)))(?=[0-9]{3}(?![0-9]))"
)
_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_LEAD_IN = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then|finally)\b,?\s+|"
    r"(?:in (?:total|all|conclusion|summary)|altogether|overall|consequently|as a result|"
    r"(?:after [a-z]+ing|by [a-z]+(?:-[a-z]+)?|using|solving|simplifying|adding|summing|substituting|combining|"
    r"factoring|expanding|rearranging)(?: [a-z]+){0,4})[,:]\s+)?"
    r"(?:(?:(?:the|our|my)?\s*(?:final|correct)?\s*(?:ans(?:wer|\.)?|result|solution)\s*"
    r"(?:is|are|:|=|(?:should|must|would) be)|it's|"
    r"(?:it|that|this)\s+(?:is|will\s+be|was)|there\s+are(?=\s+[$(0-9\\])|both(?=\s.+\sand\s))\s*:?\s+)?",
    re.IGNORECASE,
)
# Words before "is" that change what follows: "The number that is not the answer is 5".
_CHANGING = (
    "not|never|neither|either|nor|no|half|twice|double|triple|wrong|incorrect|one|another|between|about|"
    "than|if|unless|or|and|negation|converse|contrary"
)
_SENTENCE = re.compile(
    rf"^(?:(?:so|thus|hence|therefore|then)\b,?\s*)?(?:the|our|my)\s+(?:(?!(?:{_CHANGING})\b)(?:[a-z]+(?:-[a-z]+)*|[0-9]+(?:st|nd|rd|th)|(?<=[a-z]\s)[0-9]+)\s+){{1,12}}"
    r"(?:(?<=\bvalue of )(?:\\[A-Za-z]+|[A-Za-z](?![A-Za-z])|[-+*/^_(){}|0-9\s]){1,40}\s)?"
    r"(?:(?:is|are)(?:\s+equal\s+to)?|equals)"
    r"\s*:?\s+(?=[-0-9\\({\[]|[A-Za-z]\b(?!\s+[A-Za-z])|(?:an?\s+)?[A-Za-z]+\s*\.?$)",
    re.IGNORECASE,
)
_UNSAID = rf"(?:(?!\b(?:{_CHANGING}|is|are|that|which|where|whose|such)\b)[^;?!])"
# "The remainder when N is divided by 10 is 7", "the greatest common divisor of 84 and 126 is 42"
_SENTENCE_WITH_FORMULA = re.compile(
    rf"^(?:(?:so|thus|hence|therefore|then)\b,?\s*)?the\s+(?:(?!(?:{_CHANGING})\b)[a-z]+\s+){{1,4}}"
    rf"(?:when\s+{_UNSAID}{{1,80}}?\s+is\s+divided\s+by\s+{_UNSAID}{{1,40}}?|"
    rf"(?:of|from|between)\s+{_UNSAID}{{1,20}}?\s+and\s+{_UNSAID}{{1,20}}?)\s+(?:is|are|equals)\s+(?=[-0-9\\$])",
    re.IGNORECASE,
)
# "7, because 3 + 4 = 7"; a reason in which another answer may be is kept
_REASON = re.compile(
    r"(?<!\(),?\s(?:because|since)\s(?:(?!\b(?:or|not|but|maybe|perhaps|also|wrong)\b|[;?]).)*$", re.IGNORECASE
)
_CONDITION = r"(?:[^{}|:,;]|\{[^{}|:,;]*\})*"
_SET_BUILDER = re.compile(
    r"^\\?\{\s*([A-Za-z])\s*(?:\\in\s*(?:\\mathbb\s*\{?R\}?|R))?\s*[|:]\s*"
    rf"({_CONDITION}\1{_CONDITION}(?:,\s*\1\s*\\ne{_CONDITION})?)\\?\}}$"
)
# The set of x = pi/4 + k pi, where k is an integer.
_SET_OF_EQUATION = re.compile(
    r"^\\?\{\s*([A-Za-z])\s*(?:\\in\s*(?:\\mathbb\s*\{?R\}?|R))?\s*[|:]\s*(\1\s*=[^|:;]*,\s*[a-z]\s*\\in[^|:;,]*)\\?\}$"
)
_SET_OF_MULTIPLES = re.compile(  # \{2k\pi \mid k \in \mathbb{Z}\}
    r"^\\?\{((?:[^{}|:;,=<>\\]|\\(?!in(?![a-z]))[a-z]+(?![a-z])|\{[^{}]*\})*)[|:]\s*([a-z]\s*\\in\s*(?:\\mathbb\{Z\}|Z))\s*\\?\}$"
)
# \{(x,y) \in \mathbb{R}^2 : x^2 + y^2 = 1\}, and other sets with a colon
_SET_OF_POINTS = re.compile(
    r"^(\\?\{(?:[^{}:|=<>\\]|\\(?!in(?![a-z]))[a-z]+(?![a-z])|\{[^{}]*\})*?(?:\s*\\in\s*\\mathbb\{[NZQ]\})?)"
    r"\s*(?:\\in\s*\\mathbb\{R\}(?:\^(?:[0-9n]|\{[0-9n]\}))?\s*)?[:|]\s*"
)
_MEMBER_OF = re.compile(
    r"^(?:[A-Za-z](?:\([a-z]\))?|\\[a-z]+|\([a-z](?:,\s*[a-z])+\))\s*(?:\\in(?![A-Za-z])|\bin(?=\s*[(\[]))\s*"
)
_ALL = re.compile(r"^(?:for\s+)?all\s+(?:real\s+)?(?=[a-z]\s*(?:[<>]|\\(?:le|ge|ne|in)(?![A-Za-z])))", re.IGNORECASE)
_SEPARATOR = re.compile(r"\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])\s*|\\cup(?![A-Za-z])|[,;]")
_SEPARATOR_STARTS = frozenset(" ao,;\\")
_SIDES = re.compile(r"[=()\[\]{}]|\\approx(?![A-Za-z])")
_OPENING = re.compile(r"\\?\{|[(\[]")
_CLOSING = re.compile(r"(?:\\?\}|[)\]])$")
_PLUS_MINUS = re.compile(r"\\([pm])[mp](?![A-Za-z])")
_DEPTHS = {**dict.fromkeys("([{", 1), **dict.fromkeys(")]}", -1)}
_DECIMAL_COMMA = re.compile(
    r"(?<![0-9.,])([0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+)(?:(?:,|\{,\})([0-9]+))?(?![0-9]|[.,][0-9])"
)


def unbox(text: str) -> str:
    """Returns the content of `\\boxed{}` if there is one; the contents of several different boxes form a list.

    Text beside a box is not part of the answer, unless the box is one part of a formula, or is in another box. A box
    that is never closed ends with the text.
    """
    contents: list[str] = []
    position = previous = 0
    while match := _BOX.search(text, position):
        if text[match.end() : match.end() + 1] != "{":  # \boxed 7
            word = _WORD_IN_BOX.match(text, match.end())
            contents.append(word.group() if word else "")
            position = word.end() if word else match.end()
            continue
        previous, position = position, _end_of_group(text, match.end())
        if _is_part(text[: match.start()], text[position + 1 :]):
            return _BOX.sub("", _NUMBER_IN_BOX.sub(lambda m: m[1] or m[2], text))
        content = text[match.end() + 1 : position].strip()
        inner = _BOX.match(content)
        if contents and _FINAL.search(text[: match.start()]) and not _FINAL_WORD.search(text[:previous]):
            contents = []  # a box that is announced as the final answer replaces those of the steps
        is_box = inner is not None and _end_of_group(content, inner.end()) == len(content) - 1
        contents.append(unbox(content) if is_box else _BOX.sub("", content))
    if len(contents) == 1 and _NUMBER.fullmatch(contents[0]) and (unit := _UNIT_AFTER_BOX.match(text, position + 1)):
        return f"{contents[0]} {unit[2] or unit[1]}" if unit[2] or unit_of(unit[1]) else contents[0]
    return ", ".join(dict.fromkeys(contents)) if contents else text


def _is_part(before: str, after: str) -> bool:
    """Returns whether a box is a part of the formula or list around it, as in `2\\boxed{5}` and `(3, \\boxed{4})`."""
    if _BEFORE_BOX.search(before) or _AFTER_BOX.match(after):
        return True
    is_item = bool(_BEFORE_ITEM.search(before) and _AFTER_ITEM.match(after))
    return is_item and not (before.rstrip(" $").endswith("(") and after.lstrip(" $").startswith(")"))


@functools.lru_cache(maxsize=4096)  # the responses of a group share their gold answer
def clean(text: str) -> str:
    """Returns the text in one spelling: without boxes, dollar signs, layout and lead-in, with ASCII digits and signs.

    Its meaning does not change: `\\dfrac12` and "The answer is $\\frac{1}{2}$." both become `\\frac{1}{2}`. The words
    in `\\text{}` are kept as words.
    """
    text = take_conclusion(_take_final_line(unbox(text.strip())))
    if "<<" in text:
        text = _CALCULATOR.sub("", text)
    if not text.isascii():
        text = _in_ascii(text)
    if "\\" in text:
        text = respell_difference(_DELIMITERS.sub("", text))
    if "$" in text:
        text = (text if _AMOUNT.fullmatch(text) else _DOLLAR.sub("", text)).replace("\\$", "$")
    text = _FENCE.sub("", text).strip("` \n\t")
    if "\\\\" in text and "\\begin" not in text:
        text = _END_OF_LINE.sub("\n", text)
    if "." in text or "…" in text or "dots" in text:
        text = _ELLIPSIS.sub(r"\\dots ", text)
    if "rt" in text or not text.isascii():
        text = _ROOT_IN_BRACES.sub(r"\\sqrt", text)
        text = _ROOT.sub(lambda m: f"{_ROOTS.get(m[1], _SQUARE_ROOT)}{{{m[2] or m[3]}}}", text)
    if "~" in text:
        text = re.sub(r"(?:^|(?<=\s))~+\s*(?=-?[0-9])", r"\\approx ", text).replace("~", " ")
    if "x" in text:
        text = _X_AS_TIMES.sub(r"\\times ", text)
    text = _THOUSANDS.sub("", text)
    if text.count(".") > 1:
        text = _POINTS_IN_MILLIONS.sub(lambda m: m.group().replace(".", ""), text)
    if "\\" in text:
        text = respell_commands(text)
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ").replace(":=", "=").replace("{:}", ":").replace("{.}", ".")
    if "nf" in text or "pi" in text:
        text = _PI.sub(r"\\pi", _INFINITY.sub(r"\\infty", text))
    text = respell_text(text)
    text = drop_foreign_lead(text.strip())
    if not text.isascii():
        text = respell_chinese(text)
    if "**" in text:
        text = _PYTHON_POWER.sub(lambda m: f"^{{{m[1]}}}" if m[1] else "^", text)
    if "\n" in text:
        lines = [_BULLET.sub("", line) for line in text.split("\n") if line.strip()]
        text = ", ".join(lines) if all(map(_EQUATION.fullmatch, lines)) else text
    text = " ".join(text.split())
    if "ecause" in text or "ince" in text:
        reason = _REASON.search(text)
        if reason and not concludes_otherwise(text[: reason.start()], reason.group()):
            text = text[: reason.start()]
    text = drop_lead(_SENTENCE_WITH_FORMULA.sub("", _SENTENCE.sub("", _LEAD_IN.sub("", text))))
    if "all" in text[:12].lower():
        text = _ALL.sub("", text)
    if "in" in text:
        text = _MEMBER_OF.sub("", _PLUS_INFINITY.sub("", text))
    if "{" in text:
        sets = [_SET_BUILDER.match(part.strip()) for part in text.split(r"\cup")]
        text = " or ".join(each[2].rstrip("\\ ") for each in sets if each) if all(sets) else text
        text = _SET_OF_MULTIPLES.sub(r"\1, \2", _SET_OF_EQUATION.sub(r"\2", _SET_BUILDER.sub(r"\2", text)))
        text = _SET_OF_POINTS.sub(r"\1| ", _MEMBER_OF.sub("", text))
    if "\\circ" in text and "'" in text:
        text = respell_arc(text)
    return respell_whole(respell_numerals(text.rstrip(" .,;:\\").strip()))


def _take_final_line(text: str) -> str:
    """Returns the number after the `####` of GSM8K if such a line ends a text; several different ones form a list."""
    lines = _FINAL_LINE.findall(text) if "####" in text else []
    if not lines or not text.endswith(lines[-1]):
        return text
    return ", ".join(dict.fromkeys(line.strip() for line in lines))


def _in_ascii(text: str) -> str:
    """Returns a text with LaTeX for the signs of mathematics, and ASCII for other forms of digits and letters."""
    text = _SMALL_FRACTION.sub(lambda m: unicodedata.normalize("NFKC", rf"\frac{{{m[1]}}}{{{m[2]}}}"), text)
    text = _VULGAR.sub(lambda m: r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", m[0]).split("⁄")), text)
    text = _DIGITS_WITH_MARKS.sub(lambda m: rf"\overline{{{re.sub('[^0-9]', '', m.group())}}}", text)
    text = _BETWEEN_CIRCLED.sub(",", text)  # ①③ is no 13
    text = _SUPERSCRIPTS.sub(lambda m: f"^{{{''.join(_DIGITS[c] for c in m.group())}}}", text)
    text = _SUBSCRIPTS.sub(lambda m: f"_{{{unicodedata.normalize('NFKC', m.group())}}}", text)
    return unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)


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
        match = _SEPARATOR.match(inside, position) if depth == 0 and character in _SEPARATOR_STARTS else None
        if match and position not in within_numbers:
            found.append(inside[start:position])
            start = position = match.end()
            continue
        position += 1
    items = [item.strip() for item in (*found, inside[start:]) if item.strip()]
    if brackets == "()" and len(items) > 1 and len(_PLUS_MINUS.findall(inside)) == 1:  # two points
        return "", _expand_plus_minus(text)
    if len(items) == 1 and brackets:
        return "", items if brackets in ("()", "{}") and items != [r"\emptyset"] else [text]
    return brackets, [form for item in items for form in _expand_plus_minus(item)]


def split_equation(text: str) -> list[str]:
    """Returns the sides of an equation or of "≈"; only one if there is neither outside of brackets."""
    if "=" not in text and "\\approx" not in text:
        return [text.strip()]
    found: list[str] = []
    start = depth = 0
    for match in _SIDES.finditer(text):
        if match.group() in _DEPTHS:
            depth += _DEPTHS[match.group()]
        elif depth == 0 and text[match.start() - 1 : match.start()] not in ("<", ">", "!"):
            found.append(text[start : match.start()].strip())
            start = match.end()
    return [*found, text[start:].strip()]


def read_decimal_commas(text: str) -> str:
    """Returns a text in which a comma is the decimal sign, and points group thousands, with points and no groups.

    "1.234,5" becomes "1234.5". A comma with a space after it, and a semicolon, separate the items of a list.
    """
    return _DECIMAL_COMMA.sub(lambda m: m[1].replace(".", "") + (f".{m[2]}" if m[2] else ""), text)


def _split_brackets(text: str) -> tuple[str, str]:
    """Returns the brackets around the whole text, and the text inside; those of a half-open interval differ."""
    opening, closing = _OPENING.match(text), _CLOSING.search(text)
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
    signs = {"p": "+", "m": "-"}, {"p": "-", "m": "+"}
    return [_PLUS_MINUS.sub(lambda m, sign=sign: sign[m[1]], item).removeprefix("+") for sign in signs]


def _end_of_group(text: str, start: int) -> int:
    """Returns the position of the brace that closes the one at `start`; the end of the text if none does."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return position
    return len(text)
