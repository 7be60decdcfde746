"""Compares chemical formulas and equations, with indices in LaTeX or not: `H_2O`, `\\ce{H2O}` and H2O."""

import re

_ELEMENTS = (
    "He|Li|Be|Ne|Na|Mg|Al|Si|Cl|Ar|Ca|Sc|Ti|Cr|Mn|Fe|Co|Ni|Cu|Zn|Ga|Ge|As|Se|Br|Kr|Rb|Sr|Zr|Nb|Mo|Ru|Rh|Pd|Ag|Cd|In|"
    "Sn|Sb|Te|Xe|Cs|Ba|La|Ce|Pt|Au|Hg|Pb|Bi|Ra|Th|[HBCNOFPSKVYIWU]"
)
_ATOMS = rf"(?:{_ELEMENTS})[0-9]*"
# Without a repetition in a repetition: of "O2O2O2 ... A" there is one reading.
_SUBSTANCE = re.compile(rf"[0-9]*(?:{_ATOMS}|\((?:{_ATOMS})+\)[0-9]+)+(?:\^?[0-9]?[-+])?")
_WRAPPER = re.compile(r"\\ce\s*\{(.*)\}$")
_ARROW = re.compile(r"\\(?:long)?rightarrow(?![A-Za-z])|\\to(?![A-Za-z])|-+>")
_PLUS = re.compile(r"\s\+\s|(?<=[0-9A-Za-z)}])\s*\+\s*(?=[0-9]*[A-Z(])")
_LAYOUT = re.compile(r"[\s_{}]")
_CAPITAL = re.compile("[A-Z]")
_TWO_INDICES = re.compile(r"[0-9][\s_{}]+[0-9]")
_CHARGE = re.compile(r"\^([0-9]?[-+])$")


def is_same_substance(gold: str, answer: str) -> bool | None:
    """Returns True if two texts are one chemical formula or equation, but for the layout of indices; None otherwise.

    Letters of elements may be variables, too: that the layouts differ does not say that the answers do.
    """
    stated = _read(gold)
    return True if stated is not None and stated == _read(answer) else None


def _read(text: str) -> list[list[str]] | None:
    """Returns the substances of each side, in one order; None if the text is anything else."""
    if not _CAPITAL.search(text) or _TWO_INDICES.search(text):
        return None
    if match := _WRAPPER.match(text):
        text = match[1]
    sides = [[_compact(part) for part in _PLUS.split(side)] for side in _ARROW.split(text)]
    is_read = len(sides) <= 2 and all(_SUBSTANCE.fullmatch(part) for side in sides for part in side)
    if not is_read or (len(sides) == 1 and len(sides[0]) > 1):
        return None
    return [sorted(_CHARGE.sub(r"\1", part) for part in side) for side in sides]


def _compact(text: str) -> str:
    return _LAYOUT.sub("", text)
