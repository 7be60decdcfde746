"""Rewrites the less common spellings of an answer as the usual one, such as `]1,2[` as `(1,2)`."""

import re

from sspo_answers.notations.plain_text import respell_plain

_FORMATTING = re.compile(
    r"\\(?:text)?color(?:box)?\s*\{[^{}]*\}|\\(?:[hv]space\*?|[hv]?phantom)\s*\{[^{}]*\}"
    r"|\\tag\*?\s*\{[^{}]*\}|\\(?:begin|end)\s*\{(?:align|aligned|equation|gather|gathered|split|math|displaymath|center)\*?\}"
)
_ALIGNMENT = re.compile(r"\\begin\s*\{(?:align|split)")
_NEXT_LINE = re.compile(r"\\\\(?:\[[^\]]*\])?\s*(?==)")  # of a chain of equations
_NEXT_EQUATION = re.compile(r"\\\\(?:\[[^\]]*\])?\s*(?=[A-Za-z](?:_[0-9])?\s*=)")
_SIGN_OF_END = re.compile(r"\\(?:blacksquare|square|Box|qed|checkmark)\s*[.$]*$")
_ACCENT = re.compile(r"\\(hat|vec|bar|d?dot|tilde|widehat|mathbf)\s+([A-Za-z])(?![A-Za-z])")
_UNIT_VECTOR = re.compile(
    r"\\(?:hat|vec)\s*\{\s*(?:\\(?:mathbf|boldsymbol|bm|mathrm)\s*\{\s*([ijk])\s*\}|([ijk]))\s*\}"
)
_CASES_IN_ARRAY = re.compile(
    r"(?:\\left\s*)?\\\{\s*\\begin\s*\{(array|aligned)\}(?:\s*\{[a-z]*\})?((?:(?!\\begin).)*?)\\end\s*\{\1\}", re.DOTALL
)
_SYSTEM = re.compile(r"\\begin\s*\{cases\}((?:(?!\\begin).)*)\\end\s*\{cases\}", re.DOTALL)
_BEFORE_RELATION = re.compile(r"\s*&\s*(?==)|(?<==)\s*&\s*")
_UPRIGHT = r"\s*\\(?:text|mathrm)\s*\{([^{}]*)\}\s*((?:\^\s*(?:[0-9]|\{[0-9]\}))?)\s*"
_UNIT_FRACTION = re.compile(
    rf"\\[dt]?frac\s*\{{{_UPRIGHT}\}}\s*\{{{_UPRIGHT}\}}|"
    r"(?<=[0-9}\s])\\[dt]?frac\s*\{\s*([kc]?m|mi|ft)\s*\}\s*\{\s*(h|hr|s|min)\s*(\^\s*(?:2|\{2\}))?\s*\}"
)
_BIG_O = re.compile(r"\\mathcal\s*(?:O|\{O\})\s*(?=\()")
_INFIX = re.compile(r"\{([^{}]*)\\(over|choose)(?![A-Za-z])([^{}]*)\}")
_ROOT_OF = re.compile(r"\\root\s*(\{[^{}]*\}|[0-9A-Za-z])\s*\\of\s*(\{[^{}]*\}|[0-9A-Za-z])")
_CHOOSE = re.compile(r"(?<![A-Za-z0-9)}])(?:\{\})?_\{?([0-9]+)\}?\s*C_\{?([0-9]+)\}?|C_\{?([0-9]+)\}?\^\{?([0-9]+)\}?")
_CHOOSE_WITH_LETTERS = re.compile(
    r"(?<![A-Za-z\\])C(?:\(\s*([-+0-9A-Za-z ]+),\s*([-+0-9A-Za-z ]+)\)|"
    r"_(?:([0-9A-Za-z])|\{([^{}]*)\})\^(?:([0-9A-Za-z])|\{([^{}]*)\}))"
)
_CHOOSE_FROM = re.compile(
    r"(?:\{\})?\^\s*\{?([0-9]+)\}?\s*C_\{?([0-9]+)\}?|(?<![0-9A-Za-z._^])([0-9]{1,3})C([0-9]{1,3})(?![0-9A-Za-z]|\s*_)"
)
_BETWEEN_DOTS = re.compile(r"\\dot\s*\{?([0-9])\}?([0-9]*)\\dot\s*\{?([0-9])\}?")
_REPEATED = re.compile(r"(?<=[0-9.])\\(?:dot|bar|overline)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_DEGREE_LETTER = re.compile(r"(?<=[0-9})])\s*\^\s*(?:\{\s*o\s*\}|o(?![A-Za-z]))")
_OPERATOR = re.compile(
    r"\\(?:operatorname\*?|mathrm)\s*\{\s*((?:arc)?(?:sin|cos|tan|cot|sec|csc)|(?:sin|cos|tan)h|cis|(?:arc|c)?tg|ln|log|exp|(?:gcd|lcm|max|min)(?=\s*\}\s*[({_|]))\s*\}"
)
_MODULUS = re.compile(r"\(\s*mod(?![A-Za-z])\s*([^()]*)\)")
_SET_OF_NUMBERS = re.compile(
    r"\\(?:mathbb|mathds|Bbb)\s*(?:\{\s*([NZQRC])\s*\}|([NZQRC])(?![A-Za-z]))|\\reals(?![A-Za-z])"
)
_SPACES = re.compile(r"(?<!\\)\\[ ;:>]|\s+")
_LAYOUT = re.compile(r"\\(?:left|middle|right|[Bb]igg?[lr]?)(?![A-Za-z])\.?|\\!")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|sc|sl|tt|up|md|normal)?|math(?:rm|bf|it|sf|tt|normal|bin|rel|op)|[mh]box|operatorname\*?|emph|bm|pmb|ensuremath|boldsymbol|underline)\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
)
# The unit after a formula, in \mathrm or \text: a letter alone would be a factor.
_UNIT_LETTER = re.compile(
    r"((?<=[0-9}\])])(?<!\\circ\})|(?<=\\pi))(?:\\[,;:! ]|~|\s)*\\(?:mathrm|text(?:rm)?|rm)\s*\{(?:~|\\[,;: ]|\s)*"
    r"([msghNJWVKACFTL])(?![A-Za-z_0-9])([^{}]*)\}(?!\s*[_0-9{(])"
)
_UNITS_OF_LETTERS = {
    "m": "metres",
    "s": "seconds",
    "g": "grams",
    "h": "hours",
    "N": "newtons",
    "J": "joules",
    "W": "watts",
    "V": "volts",
    "K": "kelvins",
    "A": "amperes",
    "C": "coulombs",
    "F": "farads",
    "T": "teslas",
    "L": "litres",
}
_QUANTITY = re.compile(r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_DEEPEST_TEXT = 3  # \textbf{\text{(B)}}
_FONT = re.compile(r"\{\s*\\(?:rm|bf|it|sf|tt)(?![A-Za-z])([^{}]*)\}")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_SPELLINGS = {  # of a command, in one spelling
    **dict.fromkeys(("leq", "leqslant", "leqq"), r"\le "),
    **dict.fromkeys(("geq", "geqslant", "geqq"), r"\ge "),
    **dict.fromkeys(("simeq", "thickapprox", "approxeq"), r"\approx "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac", "nicefrac", "sfrac", "flatfrac"), r"\frac"),
    **dict.fromkeys(("lor", "vee"), " or "),
    "lnot": r"\neg ",
    **dict.fromkeys(("land", "wedge"), " and "),
    **dict.fromkeys(("mod", "bmod", "pmod"), " mod "),
    **dict.fromkeys(("degree", "textdegree"), r"^\circ "),
    **dict.fromkeys(("large", "Large", "LARGE", "small", "huge", "Huge", "tiny", "normalsize"), " "),
    **dict.fromkeys(("limits", "nolimits", "newline", "hfill"), " "),
    "tg": r"\tan ",
    "ctg": r"\cot ",
    "arctg": r"\arctan ",
    "bigcup": r"\cup ",
    "langle": "(",
    "rangle": ")",
    "equiv": "=",
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("rm", "bf", "it", "sf", "tt", "displaystyle", "textstyle", "quad", "qquad", "enspace"), " "),
    "imath": "i",
    **{f"var{name}": rf"\{name}" for name in ("epsilon", "theta", "phi", "rho")},
    "overrightarrow": r"\vec",
    "AA": " angstroms ",
    "varnothing": r"\emptyset ",
    "lt": "<",
    "gt": ">",
    "neq": r"\ne ",
    "lbrace": r"\{",
    "rbrace": r"\}",
    "lbrack": "[",
    "rbrack": "]",
    "colon": ":",
}
_OF_LOGARITHM = r"\s*([0-9]+|[a-z]|\([^(){}]*\)|\{[^(){}]*\})"
_RATIO_OF_LOGARITHMS = re.compile(  # the same for any base
    rf"\\frac\{{\\log{_OF_LOGARITHM}\s*\}}\{{\\log{_OF_LOGARITHM}\s*\}}|\\log{_OF_LOGARITHM}\s*/\s*\\log{_OF_LOGARITHM}(?![0-9a-z(^])"
)
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))")

_BASE_IN_BRACKETS = re.compile(r"_\s*\{\s*\(\s*([0-9]+)\s*\)\s*\}")
_DIGITS_IN_BRACKETS = re.compile(r"^[({]([0-9A-F]+)[)}]\s*(?=_)")
_HEXADECIMAL = re.compile(r"(?<![A-Za-z0-9\\])(?=[a-f]*[0-9])[0-9a-f]+(?=\s*_(?:16|\{16\}))")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASE_AFTER = re.compile(
    rf"(?<=[0-9A-F])\s*\(?\s*(?:in\s+)?base[\s-]*(?:([0-9]+)|({'|'.join(_BASES)}))\s*\)?(?=[.\s]*$)", re.IGNORECASE
)
_BASE_TEN = re.compile(r"(?<![0-9A-Za-z_.^{}])([0-9]+)\s*_\s*\{\s*10\s*\}$")
_BASE_IN_WORDS = re.compile(rf"_\s*(?:\{{\s*({'|'.join(_BASES)})\s*\}}|({'|'.join(_BASES)})(?![a-z]))")
_UNION_LETTER = re.compile(r"(?<=[)\]}])\s*U\s*(?=[(\[\\])")
_FUNCTION = re.compile(
    r"(?<![A-Za-z\\])(arc(?:sin|cos|tan)|(?:sin|cos|tan)h?|cot|sec|csc|cis|log|ln|exp)(?=\s*[(^_0-9\\{|]|\s+[a-z](?![A-Za-z]))"
)
_BOLD = re.compile(r"(?<![0-9A-Za-z)}\]*])(\*{1,3}|__)(?=[^\s*_])([^*_]+)\1(?![0-9A-Za-z*_])")
_HEADING = re.compile(r"^(?:(?:#+|\*)\s+|-\s+(?=[A-Z][a-z]+\s|\*\*))")  # or a bullet
_ABSOLUTE = re.compile(r"(?<![A-Za-z\\])abs\(([^()]*)\)")
# max(a,b) and \max\{a,b\}
_OF_SEVERAL = re.compile(r"(?<![A-Za-z])\\?(max|min|gcd|lcm)\s*(?:\(([^(){}]+)\)|\\?\{([^(){}]+?)\\?\})")
_FLOOR = re.compile(r"(?<![A-Za-z\\])(floor|ceil)\(([^()]*)\)")
_SIGN_IN_BRACES = re.compile(r"\{\s*([-+])\s*\}(?=[0-9.\\])")
_PLUS_OR_MINUS = re.compile(r"\+\s*/\s*-|\bplus or minus\b")
_COMMA_BEFORE_WORD = re.compile(r",\s*(?=(?:and|or)(?![A-Za-z]))")
_AMPERSAND = re.compile(r"\s*\\?&\s*")
_CONSEQUENCE = re.compile(r"^(?:=>?|->|\\(?:implies|therefore|[Ll]?o?n?g?[Rr]ightarrow|to)(?![A-Za-z]))\s*")
_NEGATIVE = re.compile(r"^(?:negative|minus)\s+(?=[0-9\\.])", re.IGNORECASE)
_HALF_DAY = re.compile(r"(?<=[0-9])\s*([ap])\.?\s?m\.?$", re.IGNORECASE)
_OPTION = re.compile(
    r"^(?:(?:I\s+)?(?:would\s+)?(?:choose|pick|select)\s+(?:(?:option|choice)\s+)?|(?:the\s+)?(?:correct\s+)?(?:option|choice|letter|answer)(?:\s+is)?\s*:?\s*)(?=\(?[A-Ja-j](?![A-Za-z]))",
    re.IGNORECASE,
)
_ONLY_LETTERS = re.compile(r"(?<=[A-J)IV])\s+only$")  # of the choices: A, C only
_REMAINDER = re.compile(r"(?<=[0-9])\s*,?\s*(?:R|(?:with\s+)?(?:an?\s+)?remainder(?:\s+(?:of|is))?)\s*(?=[0-9]+$)")
_DIVERGES = re.compile(
    r"^(?:(?:the\s+)?(?:limit|series|integral|sum|it)\s+)?(?:diverges|tends|goes|approaches)\s+(?:to\s+)?(?=[-+]?\s*\\infty$)",
    re.IGNORECASE,
)
_IS_THE_ANSWER = re.compile(
    r"\s+is\s+(?:correct|(?:the|our|my)\s+(?:final\s+|correct\s+|only\s+|unique\s+)?(?:answer|option|choice|solution)|"
    r"the\s+(?:minimum|maximum|smallest|largest|least|greatest)(?:\s+(?:such|possible))?(?:\s+(?:number|integer|value|[a-z]))?|the\s+number\s+of\s+[a-z]+)\.?$",
    re.IGNORECASE,
)
_HOPE = re.compile(r"\.?\s+I hope (?:it|this) is correct\.?$")  # the end of Minerva's answers
_LABEL = re.compile(
    r"^(?!(?i:yes|no|true|false|never)\b)(?![^:]*\b(?i:not|wrong|incorrect|depends|guess|notes?|hint|example|options|candidates?|possibilities|perhaps|maybe|about|possible|extraneous|reject(?:ed)?|discard(?:ed)?|invalid|false)\b)((?:[A-Za-z]?[a-z]{2,})(?:\s+[a-z]+){0,4})\s*:\s*(?=[-+0-9\\(\[{$.])",
)
_LABEL_OF_ITEM = re.compile(r"(?<=,)\s*([A-Za-z]?[a-z]{2,}(?: [a-z]+)?)\s*:\s*(?=[-+0-9\\$.])")  # mean: 5, median: 4
_ARTICLE = re.compile(r"^an?\s+(?=[0-9]+(?:\.[0-9]+)?(?:\s*\\?%|-))", re.IGNORECASE)  # a 20% increase
_POINT_LABEL = re.compile(
    r"^(?:[A-Z]'?\s*:|(?:the\s+)?(?:point|vertex|cent(?:er|re)|focus|midpoint|vector|interval|set)\s)\s*(?=[(\[{]|\\(?:begin|\{))",
    re.IGNORECASE,
)
_MAPPING = re.compile(r"^([a-zA-Z])\s*:\s*([a-z])\s*\\mapsto(?![A-Za-z])")  # f: x \mapsto 2x
_LINE_LABEL = re.compile(r"^(?:[lLC](?:_\{?[0-9]\}?)?|\\ell|\\Gamma)\s*:\s*(?=[^:]*[xy][^:]*=[^:]*$)")  # l: y = 2x
_OF_GAMES = re.compile(
    r"(?<=[A-Za-z])\s+(?:(?:is|was)\s+the\s+winner|(?:always\s+)?wins|has\s+a\s+winning\s+strategy)\.?$"
)
_ON_A_DAY = re.compile(
    r"^(?:in\s+)?(?:the\s+)?(?:year\s+)?(?=(?:1[0-9]|20)[0-9]{2}$)|"
    r"^(?:on|in)\s+(?:a\s+)?(?=(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|may|june|july|august|"
    r"(?:septem|octo|novem|decem)ber)$)",
    re.IGNORECASE,
)


# The constants of a solution of a differential equation: y = C_1 e^x + C_2 e^{-x}.
_CONSTANT = re.compile(r"(?<![A-Za-z\\])(?:[Cc](?:_[0-9]|_\{[0-9]\})?|[KkAB])(?![A-Za-df-z_(])")
_INDEXED_CONSTANT = re.compile(r"(?<![A-Za-z\\])[Cc]_\{?[0-9]")
_OF_SOLUTION = re.compile(r"e\^|\\(?:sin|cos|ln)(?![a-z])|\bx\b")
_IN_BRACES = re.compile(r"\{(?![0-9]\})[^{}]*\}")
_OF_FUNCTION = re.compile(r"[a-z](?:\([a-z]\))?\s*=")


def respell_commands(text: str) -> str:
    """Returns a LaTeX text without layout and fonts, with one spelling for commands of the same meaning."""
    text = _LAYOUT.sub("", _in_common_commands(text))
    text = _UNIT_LETTER.sub(lambda m: f" {_UNITS_OF_LETTERS[m[2]]} {m[3]}", text)
    text = _SPACES.sub(" ", text.replace("\\,", " "))
    text = _FONT.sub(r" \1 ", _QUANTITY.sub(r"\1 \2", text))
    for _ in range(_DEEPEST_TEXT):
        text = _TEXT.sub(r" \1 ", text)
    text = _COMMAND.sub(lambda m: _SPELLINGS.get(m[1], m[0]), text)
    text = _SHORT_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text)
    return _RATIO_OF_LOGARITHMS.sub(_change_base, text) if "\\log" in text else text


def _change_base(ratio: re.Match[str]) -> str:
    top, bottom = (part.strip("(){}") for part in (ratio[1] or ratio[3], ratio[2] or ratio[4]))
    return rf"\log_{{{bottom}}}({top})"


def _in_common_commands(text: str) -> str:
    """Returns a LaTeX text without the less common commands of layout, in which rare commands are the common ones."""
    if "\\begin" in text:
        text = _SYSTEM.sub(_in_one_line, _CASES_IN_ARRAY.sub(r"\\begin{cases}\2\\end{cases}", text))
    if _ALIGNMENT.search(text):
        text = _NEXT_EQUATION.sub(", ", _NEXT_LINE.sub(" ", text.replace("&", "")))
    text = _BIG_O.sub("O", text)
    text = _UNIT_FRACTION.sub(
        lambda m: f" {m[1] or m[5]}{m[2] or ''}/{m[3] or m[6]}{m[4] or m[7] or ''}",
        _FORMATTING.sub(" ", _SIGN_OF_END.sub("", text)),
    )
    text = _UNIT_VECTOR.sub(r" \1\2 ", _ACCENT.sub(r"\\\1{\2}", text))
    if "\\over" in text or "\\choose" in text:
        text = _INFIX.sub(
            lambda m: rf"\{'frac' if m[2] == 'over' else 'binom'}{{{m[1].strip()}}}{{{m[3].strip()}}}", text
        )
    if "\\root" in text:
        text = _ROOT_OF.sub(lambda m: rf"\sqrt[{m[1].strip('{}')}]{{{m[2].strip('{}')}}}", text)
    if "\\dot" in text or "\\bar" in text or "\\overline" in text:
        text = _REPEATED.sub(lambda m: rf"\overline{{{m[1] or m[2]}}}", _BETWEEN_DOTS.sub(r"\\overline{\1\2\3}", text))
    return _SET_OF_NUMBERS.sub(lambda m: rf"\mathbb{{{m[1] or m[2] or 'R'}}}", _OPERATOR.sub(r"\\\1 ", text))


def respell_choose(text: str) -> str:
    """Returns a text with `\\binom` for `C(10,3)` and `C_{2n}^{n}`, in which C may be no other thing."""
    return _CHOOSE_WITH_LETTERS.sub(
        lambda m: rf"\binom{{{m[1]}}}{{{m[2]}}}" if m[1] else rf"\binom{{{m[3] or m[4]}}}{{{m[5] or m[6]}}}", text
    )


def respell_constants(gold: str, answer: str) -> str:
    """Returns the answer with the gold answer's letters for constants: `y = Ce^x` and `y = C_1e^x` are one solution.

    The gold answer has to be a function with C, c, or these with an index.
    """
    is_solution = _OF_FUNCTION.match(gold) or _is_solution(gold)
    if not is_solution or ("=" in answer and not _OF_FUNCTION.match(answer)):
        return answer
    constants, others = (sorted(set(_CONSTANT.findall(text))) for text in (gold, answer))
    if constants == others or len(constants) != len(others) or any(name[0] not in "Cc" for name in constants):
        return answer
    spellings = dict(zip(others, constants, strict=True))
    return _CONSTANT.sub(lambda match: spellings[match.group()], answer)


def with_constants_exchanged(gold: str, answer: str) -> str | None:
    """Returns a solution of a differential equation with C_1 in the place of C_2; None if there are no such two."""
    found = [_CONSTANT.findall(_IN_BRACES.sub("", text)) for text in (gold, answer)]
    if not _is_solution(gold) or any(len(set(_CONSTANT.findall(text))) != 2 for text in (gold, answer)):
        return None
    if sorted(found[0]) != sorted(found[1]) or len(found[0]) != 2 or not all(map(_INDEXED_CONSTANT.match, found[0])):
        return None
    first, second = found[1]
    return _CONSTANT.sub(lambda match: second if match.group() == first else first, answer)


def _is_solution(gold: str) -> bool:
    """Returns whether C_1 and C_2 in a text are factors of functions such as e^x, and no capacities in a fraction."""
    outside = _IN_BRACES.sub("", gold)
    return bool(
        _OF_SOLUTION.search(gold)
        and _INDEXED_CONSTANT.search(gold)
        and len(_CONSTANT.findall(outside)) == len(_CONSTANT.findall(gold))
    )


def _in_one_line(system: re.Match[str]) -> str:
    """Returns a system of equations as a list, `x = 1, y = 2`; a function of several cases as it is."""
    text = _BEFORE_RELATION.sub("", system[1])
    rows = [row.strip(" ,;.\n") for row in text.split("\\\\") if row.strip()]
    return ", ".join(rows) if "&" not in text and all("=" in row for row in rows) else system[0]


def respell_text(text: str) -> str:
    """Returns a text without markdown, in which words and rare signs of mathematics are the usual signs."""
    if "*" in text or "__" in text or text.startswith(("#", "- ")):
        text = _BOLD.sub(r"\2", _HEADING.sub("", text))
    if "&" in text and "\\begin" not in text:
        text = _AMPERSAND.sub(" and ", text)
    text = respell_plain(_SIGN_IN_BRACES.sub(r"\1", text))
    if "+" in text or "plus" in text:
        text = _PLUS_OR_MINUS.sub(r"\\pm ", text)
    if "floor(" in text or "ceil(" in text:
        text = _FLOOR.sub(r"\\l\1 \2\\r\1 ", text)
    if "m" in text or "gcd" in text:
        text = _OF_SEVERAL.sub(lambda m: rf"\{m[1]}({m[2] or m[3]})", text)
    if "abs(" in text:
        text = _ABSOLUTE.sub(r"|\1|", text)
    if "mod" in text:
        text = _MODULUS.sub(r"mod \1", text)
    if "base" in text:
        text = _BASE_AFTER.sub(lambda m: f"_{{{m[1] or _BASES[m[2].lower()]}}}", text)
    if "_" in text:
        text = _BASE_IN_WORDS.sub(lambda m: f"_{{{_BASES[m[1] or m[2]]}}}", _BASE_IN_BRACKETS.sub(r"_{\1}", text))
        text = _BASE_TEN.sub(r"\1", text)
        text = _HEXADECIMAL.sub(lambda m: m.group().upper(), _DIGITS_IN_BRACKETS.sub(r"\1", text))
        text = _CHOOSE.sub(lambda m: rf"\binom{{{m[1] or m[3]}}}{{{m[2] or m[4]}}}", text)
    if "C" in text:
        text = _CHOOSE_FROM.sub(lambda m: rf"\binom{{{m[1] or m[3]}}}{{{m[2] or m[4]}}}", text)
    if "^" in text:
        text = _DEGREE_LETTER.sub(r"^\\circ ", text)
    if "U" in text:
        text = _UNION_LETTER.sub(r"\\cup ", text)
    return _FUNCTION.sub(r"\\\1 ", _COMMA_BEFORE_WORD.sub(" ", text))


def drop_lead(text: str) -> str:
    """Returns a text without signs, labels and words that only announce the answer, and with one spelling of pm."""
    text = _CONSEQUENCE.sub("", text)
    if "I hope" in text:
        text = _HOPE.sub("", text)
    if ":" in text:
        labelled = _LABEL.sub(r"\1 = ", text)
        if labelled != text:
            labelled = _LABEL_OF_ITEM.sub(r" \1 = ", labelled)
        text = _LINE_LABEL.sub("", _MAPPING.sub(r"\1(\2) =", labelled))
    text = _ARTICLE.sub("", text)
    text = _POINT_LABEL.sub("", _ON_A_DAY.sub("", _OPTION.sub("", text)))
    if " win" in text or " has" in text or "winner" in text:
        text = _OF_GAMES.sub("", text)
    if "only" in text:
        text = _ONLY_LETTERS.sub("", text)
    if "R" in text or "remainder" in text:
        text = _REMAINDER.sub(" R ", text)
    if "\\infty" in text:
        text = _DIVERGES.sub("", text)
    return _HALF_DAY.sub(lambda m: f" {m[1].lower()}m", _NEGATIVE.sub("-", _IS_THE_ANSWER.sub("", text)))
