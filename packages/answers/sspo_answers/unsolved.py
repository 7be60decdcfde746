"""Tells an equation that is still to be solved, such as `x^2 = 42`, from one that states a value: `m + n = 42`."""

import re

# Formulas that name a value though they have one letter: a sine, the modulus |z|, an integer part, an index.
_OF_A_NAME = re.compile(
    r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])|\|[u-wz](?:_[0-9])?\||\\[lr](?:floor|ceil)(?![A-Za-z])|"
    r"(?<![A-Za-z\\])(?![x-z])[A-Za-z]\(|(?<!\\log)_|['%]|\\(?:vec|overline|hat|bar|mathbf|mathbb|angle|triangle|det|max|min)"
)
_SYMBOL = re.compile(r"\s*\\?[A-Za-z]+\s*")
_RECIPROCAL = re.compile(r"/\s*\(?\s*[a-z]|\\frac\{[^{}]*\}\{[^{}]*[a-z]|[a-z]\^\{-")
_LINEAR = re.compile(r"[-+0-9./() ]*[a-ck-qt-z][-+0-9./() ]*|\\frac\{[0-9]*[a-ck-qt-z]\}\{[0-9]+\}")
_UNKNOWNS = frozenset("kmnpqtuvwxyz")
_BETWEEN_EQUATIONS = re.compile(r"\s*(?:[,;]|\\\\)\s*")
_VALUE_OF_LETTER = re.compile(r"([A-Za-z])\s*=[^=]+")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z]|(?<=[0-9])[A-Za-z]")
_RESULT = re.compile(r"[^=]*[0-9]\s*(?:[-+*/]|\\(?:times|cdot|div))[^=]*=\s*(\\?\$?[0-9][0-9.]*)")  # 5 * 8 = 40


def is_unsolved(side: str, letters: frozenset[str]) -> bool:
    """Returns whether a side of an equation, beside a number, is a formula of one unknown, as 2x, x^2 or |x|.

    A letter alone is a name. Where a letter is beside its reciprocal, as in x + 1/x, the formula is what a question
    asks for, and names the value.

    Args:
        side: one side of an equation, a text that `clean` returned.
        letters: its variables.
    """
    if _SYMBOL.fullmatch(side):
        return False
    if _LINEAR.fullmatch(side):
        return True
    if len(letters) != 1 or not letters <= _UNKNOWNS or _OF_A_NAME.search(side):
        return False
    occurrences = len(re.findall(rf"(?<![A-Za-z\\]){min(letters)}(?![A-Za-z])", side))
    return occurrences == 1 or not _RECIPROCAL.search(side)


def drop_equations(text: str) -> str:
    """Returns the last of several equations, `x = 7`, if those before it are its steps; any other text as it is.

    Steps are equations of x alone, as `2x = 14`, and results such as `5 * 8 = 40` that a later one takes up.

    Args:
        text: a text that `clean` returned.
    """
    *steps, last = [part for part in _BETWEEN_EQUATIONS.split(text) if part] if text.count("=") > 1 else [text]
    value = _VALUE_OF_LETTER.fullmatch(last)
    while value and steps and (other := _VALUE_OF_LETTER.fullmatch(steps[-1])) and other[1] == value[1]:
        last = f"{steps.pop()}, {last}"  # x = 2, x = 3
    for place, step in enumerate(steps):
        is_of_letter = value and step.count("=") == 1 and set(_LETTER.findall(step)) == {value[1]}
        if is_of_letter and not _VALUE_OF_LETTER.fullmatch(step):
            continue
        result = _RESULT.fullmatch(step)
        later = ", ".join((*steps[place + 1 :], last))
        if not result or not re.search(rf"(?<![0-9.=])\s*{re.escape(result[1])}(?![0-9.])[^=,]*=", later):
            return text
    return last
