"""What a worker of the math reward does. Light to import: sympy and math-verify come in `prepare`, in the worker."""

import functools
import logging
import re
import resource
from typing import Any

from megatron_sspo.reward.compare import compare

# An answer such as 9^{9^9} is a number of gigabytes. The deadline bounds its time, this its memory.
_MEMORY_BYTES = 1024**3

# Decimals to which floating-point numbers have to agree. math-verify's own 6 take 0.333333 for a third.
_FLOAT_DECIMALS = 12


def prepare() -> None:
    """Once in each worker, before its first item."""
    logging.disable(logging.CRITICAL)  # math-verify warns at every call that its own timeouts are off
    same(r"\frac{x}{2}", "x/2")  # imports take a second and the first parse another, which no deadline should pay for
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def equivalent(pair: tuple[str, str]) -> bool:
    """Whether (gold, answer) say the same, with math-verify for the expressions. What cannot be read is not equal."""
    try:
        return bool(compare(*pair, same))
    except Exception:  # whatever a model wrote may upset a parser, and must not end the run
        return False


def same(gold: str, answer: str) -> bool:
    """Whether two LaTeX expressions are the same mathematical object, by math-verify.

    Both are read as one whole expression, as if inside of `\\boxed{}`. math-verify's own search for an expression in
    free text takes the last number that it sees, by which "3, 4, 5" would equal 5 and an answer could hedge. Runs
    without a time limit of its own: the pool has one.
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

    text = re.sub(r"(?<=[0-9}])i(?![A-Za-z])", " i", text)  # without the space it is a symbol, and no root of -1
    return parse(f"\\boxed{{{text}}}", [LatexExtractionConfig(boxed_match_priority=0)], parsing_timeout=0)
