"""Exchanges the letters of two formulas where sympy and math-verify would misread them."""

import re

from sspo_answers.names import letters_of, with_letter

_LETTERS = frozenset("abcghjklmnpqrstuvwxyz")  # without e and i, which are constants, and d, f and o
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-z]*\}")
_OF_INTEGERS = re.compile(r"\\(gcd|lcm)\s*(?:\(([^(){}]*)\)|\\?\{([^(){}]*)\\?\})")
_INDEX = re.compile(r"\\(?:sum|prod)\s*_\s*\{\s*([a-z])\s*=")
_OF_MATRIX = re.compile(r"[A-Z]\s*\^\s*(?:\{\s*(?:-1|-?T|\\top)\s*\}|T(?![A-Za-z])|\\top)")
_CAPITAL = re.compile(r"(?<!\\)(?<![a-z])[A-Z](?![a-z])")
_SIGNS = re.compile(r"[-+=](?![^({]*[)}])")
_LETTER = re.compile(r"[A-Za-z]")


def with_letters_for_divisors(gold: str, answer: str) -> tuple[str, str]:
    """Returns both texts with one letter for each `\\gcd(m,n)` of letters, whose value sympy takes for 1."""
    if not _OF_INTEGERS.search(gold) and not _OF_INTEGERS.search(answer):
        return gold, answer
    free = _free_letters(gold, answer)
    letters: dict[tuple[str, ...], str] = {}

    def letter_for(match: re.Match[str]) -> str:
        operands = sorted(re.sub(r"\s+", "", match[2] or match[3] or "").split(","))
        if not any(map(_LETTER.search, operands)):
            return match.group()
        is_multiple = match[1] == "lcm" and len(operands) == 2
        call = ("gcd" if is_multiple else match[1], *operands)
        if call not in letters and free:
            letters[call] = free.pop()
        if call not in letters:
            return match.group()
        return rf"\frac{{({operands[0]})({operands[1]})}}{{{letters[call]}}}" if is_multiple else f"({letters[call]})"

    return _OF_INTEGERS.sub(letter_for, gold), _OF_INTEGERS.sub(letter_for, answer)


def with_distinct_letters(gold: str, answer: str) -> tuple[str, str]:
    """Returns both texts with another letter for N beside n, since math-verify compares symbols in lower case."""
    letters = letters_of(_ENVIRONMENT.sub(" ", f"{gold} {answer}"))
    capitals = sorted(letter for letter in letters if letter.isupper() and letter.lower() in letters)
    if not capitals:
        return gold, answer
    spellings = dict(zip(capitals, _free_letters(gold, answer), strict=False))
    places = re.compile(rf"\\mathbb\{{[A-Z]\}}|\\[A-Za-z]+|[{''.join(capitals)}]")
    gold, answer = (
        places.sub(lambda match: spellings.get(match.group(), match.group()), text) for text in (gold, answer)
    )
    return gold, answer


def with_letter_of_sum(gold: str, answer: str) -> str:
    """Returns the answer with the gold answer's letter for the index of a sum or product: k and n count alike."""
    indices = [set(_INDEX.findall(text)) for text in (gold, answer)]
    if len(indices[0]) != 1 or len(indices[1]) != 1 or indices[0] & indices[1]:
        return answer
    (letter,), (own,) = indices
    return answer if own in letters_of(gold) else with_letter(answer, own, letter)


def are_in_other_order(gold: str, answer: str) -> bool:
    """Returns whether matrices or vectors are multiplied in another order: A^{-1}B and BA^{-1}."""
    if any("\\vec" in text and "\\times" in text for text in (gold, answer)):
        return True  # texts that are the same were compared before
    if not _OF_MATRIX.search(gold) and not _OF_MATRIX.search(answer):
        return False
    orders = [sorted("".join(_CAPITAL.findall(term)) for term in _SIGNS.split(text)) for text in (gold, answer)]
    return orders[0] != orders[1]


def _free_letters(gold: str, answer: str) -> list[str]:
    return sorted(_LETTERS - {letter.lower() for letter in letters_of(f"{gold} {answer}")})
