"""Rewrites a whole answer that is a set with a name, such as "no solution", or an interval such as `]1,2[`."""

import re

_OUTWARD_BRACKETS = re.compile(r"(?<![^ p])([\[\]])([^\[\]]*[,;][^\[\]]*)([\[\]])(?= *(?:\\cup|$))")
_ANGLES = re.compile(r"<([^<>]*,[^<>]*)>")
_QUOTED = re.compile(r"([\"'])([^\"']*)\1")

_ALL_REALS = re.compile(
    r"(?:the\s+)?(?:set\s+of\s+)?(?:all\s+)?real(?:s|\s+numbers|(?:\s+values\s+of)?\s+[a-z])|(?:any|every)\s+real\s+number|\(-\\infty\s*,\s*\+?\s*\\infty\s*\)",
    re.IGNORECASE,
)
_INTEGERS = re.compile(r"(?:the\s+)?(?:set\s+of\s+)?(?:all\s+)?integers", re.IGNORECASE)
_INFINITELY_MANY = re.compile(
    r"(?:there\s+(?:are|exist)\s+)?(?:infinitely\s+many(?:\s+solutions)?|infinite(?:\s+(?:number\s+of\s+)?solutions)?)",
    re.IGNORECASE,
)
_MISSING = re.compile(r"(?:(?:the\s+)?limit\s+)?(?:does\s+not\s+exist|DNE|(?:is\s+)?undefined)", re.IGNORECASE)
_OF_SERIES = re.compile(  # convergence, alone or of what the question names
    r"(?:(?:the|this)\s+(?:(?:infinite|improper|given|power|alternating)\s+)?(?:series|sequence|integral)\s+|it\s+)?(?:is\s+)?(con|di)verge(?:s|nt)",
    re.IGNORECASE,
)
_POSITIVE_REALS = re.compile(
    r"\\mathbb\{R\}(?:[\^_](?:\{\+\}|\+)|_\{>\s*0\})|(?:the\s+)?(?:set\s+of\s+)?(?:all\s+)?positive\s+real(?:s|\s+numbers)",
    re.IGNORECASE,
)
_POSITIVE_INTEGERS = re.compile(
    r"\\mathbb\{Z\}(?:[\^_](?:\{\+\}|\+)|_\{>\s*0\})|(?:the\s+)?(?:set\s+of\s+)?(?:all\s+)?positive\s+integers|"
    r"every\s+positive\s+integer",
    re.IGNORECASE,
)
_KIND = r"(?:non-?)?(?:positive|negative)|odd|even"
# "all odd positive integers", "positive even numbers n", "n is odd"
_INTEGERS_OF_KIND = re.compile(
    rf"(?:(?:all|every|any)\s+)?((?:(?:{_KIND})\s+)*(?:odd|even)\s+(?:(?:{_KIND})\s+)*)(?:(?:integers?|numbers?)(?:\s+[a-z])?|[a-z])|"
    rf"(?:all|every|any)\s+((?:(?:{_KIND})\s+)*(?:odd|even)(?:\s+(?:{_KIND}))*)|[a-z]\s+(?:is\s+)?(?P<parity>odd|even)",
    re.IGNORECASE,
)
_QUADRANTS = {
    **dict.fromkeys(("i", "1", "first", "one"), 1),
    **dict.fromkeys(("ii", "2", "second", "two"), 2),
    **dict.fromkeys(("iii", "3", "third", "three"), 3),
    **dict.fromkeys(("iv", "4", "fourth", "four"), 4),
}
_QUADRANT = re.compile(
    rf"(?:in\s+)?(?:the\s+)?(?:(first|second|third|fourth)\s+quadrant|quadrant\s+({'|'.join(_QUADRANTS)}))",
    re.IGNORECASE,
)
_TRANSPOSED = re.compile(r"([(\[][^()\[\]]*,[^()\[\]]*[)\]])\s*\^\s*(?:T|\\top|\{\s*(?:T|\\top)\s*\})")
_EMPTY = re.compile(
    r"\\?\{\s*\\?\}|Ø|(?:the\s+)?empty\s+set|none|"
    r"(?:(?:there\s+(?:is|are)|(?:it|the\s+(?:equation|system|inequality))\s+has|has)\s+)?no\s+(?:real\s+)?(?:solution|root)s?(?:\s+exists?)?",
    re.IGNORECASE,
)


def respell_whole(text: str) -> str:
    """Returns the usual spelling of an answer that is a set with a name, or an interval such as `]1,2[`."""
    if _EMPTY.fullmatch(text):
        return r"\emptyset"
    if _INFINITELY_MANY.fullmatch(text):
        return "infinitely many"
    if _MISSING.fullmatch(text):
        return "DNE"
    if match := _OF_SERIES.fullmatch(text):
        return f"{match[1]}verges".lower()
    if text == r"\mathbb{R}" or _ALL_REALS.fullmatch(text):
        return r"(-\infty,\infty)"
    if _POSITIVE_REALS.fullmatch(text):
        return r"(0,\infty)"
    if _POSITIVE_INTEGERS.fullmatch(text):
        return r"\mathbb{Z}^{+}"
    if match := _QUADRANT.fullmatch(text):
        return f"quadrant {_QUADRANTS[(match[1] or match[2] or match['parity']).lower()]}"
    if match := _INTEGERS_OF_KIND.fullmatch(text):
        kinds = sorted(
            {kind.replace("-", "") for kind in re.findall(_KIND, (match[1] or match[2] or match["parity"]).lower())}
        )
        return f"all {' '.join(kinds)} integers"
    if match := _TRANSPOSED.fullmatch(text):
        return f"({match[1][1:-1]})"
    if _INTEGERS.fullmatch(text):
        return r"\mathbb{Z}"
    if match := _ANGLES.fullmatch(text):
        return f"({match[1]})"
    if match := _QUOTED.fullmatch(text):
        return match[2]
    if ("[" in text or "]" in text) and (text[0] == "]" or text[-1] == "[" or "\\cup" in text):
        return _OUTWARD_BRACKETS.sub(
            lambda m: f"{'[' if m[1] == '[' else '('}{m[2]}{']' if m[3] == ']' else ')'}", text
        )
    return text
