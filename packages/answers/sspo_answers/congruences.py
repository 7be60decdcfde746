"""Compares congruences: `x \\equiv 3 \\pmod 7` is the same as `x \\equiv -4 \\pmod 7`, and as all 7k + 3."""

import re

from sspo_answers.names import INTEGER_PARAMETER

_RESIDUE = r"-?[0-9]{1,18}"
_BY_MODULUS = re.compile(
    rf"(?:(?P<name>[A-Za-z])\s*=\s*)?(?P<residues>(?:\\pm\s*)?{_RESIDUE}(?:\s*(?:,|\bor\b|\band\b)\s*(?:[A-Za-z]\s*=\s*)?{_RESIDUE}){{0,9}})"
    r"\s*,?\s*mod\s*\{?\s*(?P<modulus>[0-9]{1,18})\s*\}?"
)
_FAMILY = re.compile(
    r"(?:(?P<name>[A-Za-z])\s*=\s*)?(?:(?P<modulus>[0-9]{1,18})(?P<letter>[a-z])\s*(?P<end>[-+]\s*[0-9]{1,18})?|"
    r"(?P<start>-?[0-9]{1,18})\s*\+\s*(?P<step>[0-9]{1,18})(?P<counter>[a-z]))"
)
_LETTERS = frozenset("klmn")  # of a parameter that is not declared


def is_same_congruence(gold: str, answer: str) -> bool | None:
    """Returns whether two texts are the same residues by the same modulus; None unless both are, one of them with mod.

    A residue of the answer has to be smaller than the modulus: 123456 mod 7 is still to be computed.
    """
    if " mod" not in gold and " mod" not in answer:
        return None
    stated, found = _read(gold), _read(answer)
    if stated is None or found is None:
        return None
    (name, residues, modulus), (other, others, own_modulus) = stated, found
    if modulus != own_modulus or (name and other and name != other):
        return False
    if any(abs(residue) >= modulus for residue in others - residues):
        return False
    return {residue % modulus for residue in residues} == {residue % modulus for residue in others}


def _read(text: str) -> tuple[str, set[int], int] | None:
    """Returns the name, which may be empty, the residues and the modulus of a congruence; None for any other text."""
    if match := _BY_MODULUS.fullmatch(text):
        residues, modulus = {int(residue) for residue in re.findall(_RESIDUE, match["residues"])}, match["modulus"]
        if "\\pm" in match["residues"]:
            residues |= {-residue for residue in residues}
    else:
        parameter = INTEGER_PARAMETER.search(text)
        match = _FAMILY.fullmatch(text[: parameter.start()].strip() if parameter else text)
        letter = (match["letter"] or match["counter"]) if match else ""
        if match is None or letter not in (parameter.groups() if parameter else _LETTERS - {match["name"]}):
            return None
        residues = {int((match["start"] or match["end"] or "0").replace(" ", ""))}
        modulus = match["modulus"] or match["step"]
    return (match["name"] or "", residues, int(modulus)) if int(modulus) else None
