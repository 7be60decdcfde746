"""What a worker of the math reward does. Light to import: sympy and math-verify come in `prepare`, in the worker."""

import logging
import re
import resource

# An answer such as 9^{9^9} is a number of gigabytes. The deadline bounds its time, this its memory.
_MEMORY_BYTES = 4 * 1024**3

_NUMBER_IN_BASE = re.compile(r"\d\s*_")


def prepare() -> None:
    """Once in each worker, before its first item."""
    import math_verify  # noqa: F401  the import takes a second, which no deadline should pay for

    logging.disable(logging.CRITICAL)  # math-verify warns at every call that its own timeouts are off
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def equivalent(pair: tuple[str, str]) -> bool:
    """Whether (gold, answer) are the same mathematical object, by math-verify.

    Both are read as one whole LaTeX expression, as if inside of `\\boxed{}`. math-verify's own search for an expression
    in free text takes the last number that it sees, by which "3, 4, 5" would equal 5 and an answer could hedge.
    What cannot be read is not equal. Runs without a time limit of its own: the pool has one.
    """
    from math_verify import verify

    gold, answer = pair
    if not (_balanced(gold) and _balanced(answer)):
        return False
    if _NUMBER_IN_BASE.search(gold) or _NUMBER_IN_BASE.search(answer):
        return _bare(gold) == _bare(answer)  # math-verify drops the base: 16_8 would equal 16
    try:
        return bool(verify(_parse(gold), _parse(answer), timeout_seconds=0))
    except Exception:  # whatever a model wrote may upset a parser, and must not end the run
        return False


def _parse(text: str) -> list:
    from math_verify import LatexExtractionConfig, parse

    boxed = text if "\\boxed" in text else f"\\boxed{{{text}}}"
    return parse(boxed, [LatexExtractionConfig(boxed_match_priority=0)], parsing_timeout=0)


def _balanced(text: str) -> bool:
    """Whether every brace has its partner. "5}{6" inside of a box would be read as 5."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def _bare(text: str) -> str:
    return re.sub(r"[\s{}$]", "", text)
