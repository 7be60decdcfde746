"""Rewrites relations, sets without members, binomials and repeating decimals of plain text as LaTeX."""

import re

# "x != 3", where no factorial can be meant
_UNEQUAL = re.compile(r"\\not\s*=|(?<![A-Za-z])[xyz]\s*(?P<sign>!=)|(?<=[A-Za-z]\s)!=(?!=)")
_NO_MEMBER = re.compile(r"\\not\s*\\in(?![A-Za-z])")
_IN_WORDS = re.compile(
    r"^([A-Za-z])\s+(?:is|does|must be|should be|can)?\s*(?:(not)\s+equal(?:\s+to)?|(greater|more|larger|less|smaller)"
    r"\s+than(\s+or\s+equal\s+to)?|at\s+(least|most))\s+(?=-?[0-9.\\]+)"
)
_NUMBER_FIRST = re.compile(r"^(-?(?:[0-9./]+|\\frac\{[0-9]+\}\{[0-9]+\}))\s*\\ne(?![A-Za-z])\s*([A-Za-z])$")  # 3 \ne x
_REALS_LESS_SET = re.compile(r"(?<![A-Za-z\\])(?:R|\\mathbb\{R\})\s*\\\s*\{([^{}\\]*)\}")  # R \ {3}
_LETTER_OF_REALS = re.compile(r"^R(?=\s*(?:-|\\setminus|\\backslash)\s*(?:\\?\{|[(\[][^()\[\]]*,))")
_INFINITY = re.compile(r"(?<![A-Za-z\\])oo(?![A-Za-z])")
_NUMBER = r"(?:[0-9]+[a-z]?|[a-z])"
_CHOOSE = re.compile(
    rf"(?:(?<![0-9A-Za-z)}}\]])|\{{\}})[\^_]\s*\{{?({_NUMBER})\}}?\s*C\s*_\s*\{{?({_NUMBER})\}}?|"
    rf"(?<![0-9A-Za-z._^\\])([a-z])C([0-9]{{1,2}}|[rk])(?![0-9A-Za-z]|\s*_)|"
    rf"(?<![0-9A-Za-z._^\\])({_NUMBER})\s+choose\s+({_NUMBER})(?![0-9A-Za-z])"
)
_CHOOSE_BELOW = re.compile(r"(?<![0-9A-Za-z\\}])C\s*\^\s*\{?([0-9]+)\}?\s*_\s*\{?([0-9]+)\}?")  # C^3_{10}
_LONE_LETTER = re.compile(r"(?<![0-9A-Za-z\\])C\s+(?=[_^(])")  # of \mathrm{C}_{10}^{3}
_REPEATING = re.compile(r"(?<![0-9.])([0-9]*\.)([0-9])\s*\(?\s*(?:repeating|recurring)\s*\)?$")
_FRACTION_IN_BRACES = re.compile(r"(?<=[0-9])\s*\{\s*(\\frac\s*\{[0-9]+\}\s*\{[0-9]+\})\s*\}")  # 1{\frac{1}{2}}
_CONSTANT = re.compile(r"(?<=[^\s+])\s*\+\s*const(?:ant|\.)?\s*$")  # of an integral
_INVERSE = re.compile(r"(?<![A-Za-z\\])arc(c?)tg(?![A-Za-z]{2})")
_NAMED = re.compile(r"([a-z])\s*:\s*(-?[0-9./]+)")
_LIST_OF_NAMED = re.compile(rf"{_NAMED.pattern}(?:\s*,\s*{_NAMED.pattern})+")  # x: 2, y: 3
_AND = re.compile(r"(?<=[0-9)}])\s+(?:und|et|и|[ye])\s+(?=[-0-9(\\])")  # in other languages


def respell_plain(text: str) -> str:
    """Returns a text with the commands of LaTeX for relations, sets, binomials and decimals that are in plain text."""
    if "not" in text or "!=" in text:
        text = _NO_MEMBER.sub(r"\\notin ", text)
        text = _UNEQUAL.sub(lambda m: m.group().replace(m["sign"], r"\ne ") if m["sign"] else r"\ne ", text)
    if " than " in text or " equal" in text or " at " in text:
        text = _IN_WORDS.sub(_relation, text)
    if "\\ne" in text:
        text = _NUMBER_FIRST.sub(r"\2 \\ne \1", text)
    if "R" in text:
        text = _LETTER_OF_REALS.sub(r"\\mathbb{R}", text)
    if "oo" in text:
        text = _INFINITY.sub(r"\\infty ", text)
    if "C" in text:
        text = _CHOOSE_BELOW.sub(_below_above, _LONE_LETTER.sub("C", text))
    if "C" in text or "choose" in text:
        text = _CHOOSE.sub(lambda m: rf"\binom{{{m[1] or m[3] or m[5]}}}{{{m[2] or m[4] or m[6]}}}", text)
    if "ing" in text:
        text = _REPEATING.sub(r"\1\\overline{\2}", text)
    if "const" in text:
        text = _CONSTANT.sub("+C", text)
    if "tg" in text:
        text = _INVERSE.sub(lambda m: rf"\arc{'cot' if m[1] else 'tan'} ", text)
    if "," in text:
        if ":" in text and _LIST_OF_NAMED.fullmatch(text):
            text = text.replace(":", " = ")
        text = _AND.sub(" and ", text)
    return _FRACTION_IN_BRACES.sub(r"\1", text)


def respell_difference(text: str) -> str:
    """Returns a text with `\\setminus` for the backslash of `R \\ {3}`, which LaTeX would read as a space."""
    return _REALS_LESS_SET.sub(r"\\mathbb{R} \\setminus \\{\1\\}", text)


def _relation(match: re.Match[str]) -> str:
    if match[2]:
        return rf"{match[1]} \ne "
    if match[5]:
        return rf"{match[1]} \{'ge' if match[5] == 'least' else 'le'} "
    sign = ">" if match[3] in ("greater", "more", "larger") else "<"
    return f"{match[1]} " + (rf"\{'g' if sign == '>' else 'l'}e " if match[4] else f"{sign} ")


def _below_above(match: re.Match[str]) -> str:
    """Returns the binomial of `C^3_{10}`, of which the larger number is the size of the set in every country."""
    above, below = match.groups()
    many, few = (above, below) if int(above) > int(below) else (below, above)
    return rf"\binom{{{many}}}{{{few}}}"
