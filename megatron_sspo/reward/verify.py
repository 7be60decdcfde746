"""The work of a math reward's worker. Its import is fast: sympy and math-verify are imported later, by `prepare`."""

import functools
import logging
import re
import resource
from typing import Any

from megatron_sspo.reward.compare import compare

# An answer such as 9^{9^9} is a number of gigabytes. The deadline bounds its time, and this limit its memory.
_MEMORY_BYTES = 1024**3

# Decimals to which floating-point numbers have to agree. With math-verify's default of 6, 0.333333 equals 1/3.
_FLOAT_DECIMALS = 12


def prepare() -> None:
    """Prepares a worker. It is called once in each worker, before its first item."""
    logging.disable(logging.CRITICAL)  # math-verify warns at every call that its own timeouts are off
    is_same_expression(r"\frac{x}{2}", "x/2")  # imports and first parse: two seconds that no deadline should include
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def is_equivalent(pair: tuple[str, str]) -> bool:
    """Returns whether (gold, answer) are equal; math-verify compares expressions. Unreadable text is not equal."""
    try:
        return bool(compare(*pair, is_same_expression))
    except Exception:  # text of a model can make a parser raise, and must not end the run
        return False


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
    return parse(f"\\boxed{{{text}}}", [LatexExtractionConfig(boxed_match_priority=0)], parsing_timeout=0)
