"""Compares finitely generated abelian groups: `\\mathbb{Z}_6` is `\\mathbb{Z}/2\\mathbb{Z} \\times \\mathbb{Z}_3`."""

import re
from collections import Counter

_INTEGERS = r"(?:\\mathbb\s*\{Z\}|Z)"
_CYCLIC = (
    rf"{_INTEGERS}(?:\s*/\s*(?:\(?\s*(?P<quotient>[0-9]{{1,9}})\s*(?:{_INTEGERS})?\s*\)?|"
    rf"\{{\s*(?P<braced>[0-9]{{1,9}})\s*{_INTEGERS}?\s*\}})|_\s*\{{?\s*(?P<index>[0-9]{{1,9}})\s*\}}?)?"
)
_OWN_CYCLIC = r"C_\s*\{?\s*(?P<cyclic>[0-9]{1,9})\s*\}?"
_FACTOR = re.compile(
    rf"\s*(?:\(\s*{_CYCLIC}\s*\)|{_CYCLIC.replace('?P<', '?P<bare_')}|{_OWN_CYCLIC})"
    r"\s*(?:\^\s*\{?\s*(?P<power>[0-9]{1,2})\s*\}?)?\s*"
)
_PRODUCT = re.compile(r"\\(?:times|oplus)(?![A-Za-z])|⊕")


def is_same_group(gold: str, answer: str) -> bool | None:
    """Returns whether two products of cyclic groups are isomorphic; None unless both texts are such products."""
    if "Z" not in gold:
        return None
    parts, others = _read(gold), _read(answer)
    return None if parts is None or others is None else parts == others


def _read(text: str) -> Counter[int] | None:
    """Returns how often each prime power is the order of a factor, and at 0 the rank; None for any other text."""
    orders: Counter[int] = Counter()
    for part in _PRODUCT.split(text):
        match = _FACTOR.fullmatch(part)
        if match is None:
            return None
        names = ("quotient", "braced", "index", "bare_quotient", "bare_braced", "bare_index", "cyclic")
        order = next((int(match[name]) for name in names if match[name]), 0)
        for divisor in _prime_powers(order):
            orders[divisor] += int(match["power"] or 1)
    return orders


def _prime_powers(order: int) -> list[int]:
    """Returns the prime powers whose product an order is; the order 0 of the integers itself."""
    if order == 0:
        return [0]
    found: list[int] = []
    divisor = 2
    while divisor * divisor <= order:
        power = 1
        while order % divisor == 0:
            power, order = power * divisor, order // divisor
        found += [power] if power > 1 else []
        divisor += 1
    return [*found, order] if order > 1 else found
