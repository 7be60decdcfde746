"""The work of a math reward's worker. Its import is fast: sympy and math-verify are imported later, by `prepare`."""

import functools
import logging
import re
import resource
from fractions import Fraction
from typing import Any

from sspo_answers import evaluate
from sspo_answers.answer import split_equation
from sspo_answers.compare import compare
from sspo_answers.formula import FUNCTIONS, GREEK

# An answer such as 9^{9^9} is a number of gigabytes. The deadline bounds its time, and this limit its memory.
_MEMORY_BYTES = 1024**3

# Decimals to which floating-point numbers have to agree. With math-verify's default of 6, 0.333333 equals 1/3.
_FLOAT_DECIMALS = 12

# A fraction that multiplies the factor after it: 4/3 \pi has pi above.
_COEFFICIENT = re.compile(
    r"(^|[-+=(\[{,]\s*)([0-9]{1,9})\s*/\s*([0-9]{1,9})(?=\s*\(|\s+[A-Za-z]|\s*\\(?!times|cdot|div|le|ge|ne|in|pm|cup)[a-z])"
)
_LONGEST = 400  # characters of an answer for math-verify, unless the gold answer is as long
_DEEPEST = 40  # brackets within brackets
_SECOND_POWER = re.compile(r"\^\s*(?:[A-Za-z0-9]|\\[A-Za-z]+|\{[^{}]*\})\s*\^")
_FACTORIALS = re.compile(r"!\s*!")  # a factorial of a factorial for sympy, and not the double one
# What may be infinite as a floating-point number: math-verify takes 2024!/5 for 2023!/5.
_LARGE = re.compile(r"[0-9]{3,}\s*[)}]?\s*!|[0-9e)}]\s*\^\s*[{(]?\s*-?(?:[3-9][0-9]{2}|[0-9]{4})")
_COMMAND = re.compile(r"\\([A-Za-z]+)|([^\W\d_A-Za-z]+|[%#@])")  # or a word of another script
_TOKEN = re.compile(r"\\[A-Za-z]+|[0-9.]+|\S")
# math-verify drops a command that it does not know, a word of another script, and %: it would read \neg 5 as 5.
_KNOWN_COMMANDS = {
    *FUNCTIONS,
    *GREEK,
    *("frac", "over", "choose", "binom", "dbinom", "tbinom", "sqrt", "times", "cdot", "div", "pm", "mp"),
    *("circ", "hbar", "le", "ge", "ne", "approx", "in", "notin", "subset", "subseteq", "to", "forall"),
    *("exists", "angle", "triangle", "begin", "end", "infty", "pi", "partial", "nabla", "mathbb", "mathcal"),
    *("operatorname", "Vert", "dot", "ddot", "cup", "cap", "setminus", "backslash", "emptyset", "sum", "prod"),
    *("int", "iint", "iiint", "oint", "lim", "log", "max", "min", "gcd", "lcm", "det", "dots", "ldots"),
    *("cdots", "vdots", "ddots", "overline", "bar", "vec", "hat", "lfloor", "rfloor", "lceil", "rceil"),
}
# math-verify takes 2 5/3 for 7/3. `read_number` has read the proper ones, as mixed numbers.
_IMPROPER_MIXED = re.compile(r"[0-9]\s+(?:[0-9]+\s*/\s*[0-9]|\\[dt]?frac)")

_NUMBER_AFTER_LETTER = re.compile(r"(?<![\\A-Za-z_^])[A-Za-z]\s*[0-9]")  # "7 e 8", of which it would read the 7


def prepare() -> None:
    """Prepares a worker. It is called once in each worker, before its first item."""
    logging.disable(logging.CRITICAL)  # math-verify warns at every call that its own timeouts are off
    for answer in ("x/2", r"\begin{pmatrix}1\end{pmatrix}"):  # imports and first parse take two seconds of no deadline
        Formulas().is_same(r"\frac{x}{2}", answer)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def is_equivalent(pair: tuple[str, str]) -> bool:
    """Returns whether (gold, answer) are equal. Unreadable text is not equal."""
    try:
        return bool(compare(*pair, Formulas()))
    except Exception:  # text of a model can make a parser raise, and must not end the run
        return False


class Formulas:
    """Compares formulas by their values, and by math-verify what has none: relations, sets, matrices, integrals."""

    def is_same(self, gold: str, answer: str) -> bool:
        """Returns whether two formulas are the same mathematical object."""
        gold, answer = _COEFFICIENT.sub(r"\1\\frac{\2}{\3}", gold), _COEFFICIENT.sub(r"\1\\frac{\2}{\3}", answer)
        verdict = _compare_values(gold, answer)
        if verdict is None:
            if _tokens(gold) == _tokens(answer):
                return True
            is_read = (
                len(answer) <= max(_LONGEST, 2 * len(gold))
                and _is_readable(gold)
                and _is_readable(answer)
                and _unknown(gold) == _unknown(answer)
            )
            return is_read and is_same_expression(gold, answer)
        return verdict

    def value_of(self, text: str) -> Fraction | None:
        """Returns the value of a formula without variables; None if it has none, or is not real."""
        return evaluate.value_of(text)


def _compare_values(gold: str, answer: str) -> bool | None:
    sides, other_sides = split_equation(gold), split_equation(answer)
    if len(sides) == len(other_sides) == 1:
        return evaluate.is_same_formula(gold, answer)
    if len(sides) == len(other_sides) == 2:
        return evaluate.is_same_equation((sides[0], sides[1]), (other_sides[0], other_sides[1]))
    return None


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _unknown(text: str) -> list[str]:
    return sorted(name or word for name, word in _COMMAND.findall(text) if name not in _KNOWN_COMMANDS)


def _is_readable(text: str) -> bool:
    """Returns whether math-verify can read a text, and soon: no deep brackets, no `x^x^x`, which is no LaTeX either."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if depth != 0 or deepest > _DEEPEST:
        return False
    forms = _SECOND_POWER, _FACTORIALS, _LARGE, _IMPROPER_MIXED, _NUMBER_AFTER_LETTER
    return not any(form.search(text) for form in forms)


def is_same_expression(gold: str, answer: str) -> bool:
    """Returns whether two LaTeX expressions are the same mathematical object, by math-verify.

    Each is read as one whole expression, as if inside of `\\boxed{}`. math-verify's own search for an expression in
    free text takes the last number that it finds. Then "3, 4, 5" would equal 5, and an answer could hedge. There is no
    time limit here, since the pool has one.
    """
    from math_verify import verify

    return bool(
        verify(
            _parse(gold),
            _parse(answer),
            float_rounding=_FLOAT_DECIMALS,
            timeout_seconds=0,
            allow_set_relation_comp=True,  # an interval is equal to the inequality that describes it, either way round
        )
    )


@functools.lru_cache(maxsize=1024)  # the responses of a group share their gold answer
def _parse(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    text = re.sub(r"(?<=[0-9}])i(?![A-Za-z])", " i", text)  # without the space, i is not the imaginary unit
    return parse(
        f"\\boxed{{{text}}}",
        [LatexExtractionConfig(boxed_match_priority=0)],
        extraction_mode="first_match",  # "any_match" would take the last fraction of a text that it cannot read
        parsing_timeout=0,
    )
